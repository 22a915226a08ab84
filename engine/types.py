"""The vocabulary between the batch manager and an engine: numpy only, importing nothing of ours.

Shape legend: B sequences in a batch, T tokens in a batch (no padding), D numbers in a row.
"""

import enum
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class OutputKind(enum.IntFlag):
    """What a batch is computed for. Several at once where a model gives several from one forward."""

    POOLED = 1  # one row a sequence: embeddings, before a final Normalize (see ModelInfo.normalize)
    LOGITS = 2  # one row of raw scores a sequence: rerankers, classifiers
    TOKENS = 4  # one row a token
    SPARSE = 8  # ragged rows of two: a vocabulary entry's number, exact in float32, and its weight, which is not zero
    TOKEN_LOGITS = 16  # one row of raw scores a token: token classifiers
    MULTI_VECTOR = 32  # one row a token, for late interaction


ROWS_OF_TOKENS = OutputKind.TOKENS | OutputKind.TOKEN_LOGITS | OutputKind.MULTI_VECTOR  # as many rows as tokens

MAX_NUM_SEQS = 1024  # of a batch, where nobody says otherwise and an engine has no reason for less


def main_output(outputs: OutputKind) -> OutputKind:
    """Of several, the lowest flag: what a model that gives them is mainly for."""
    return OutputKind(outputs & -outputs)


# Added to the type of a token; types themselves are smaller.
PROMPT_TOKEN = 256  # pooling leaves it out, as some models want it of their prompts
EXPANSION_TOKEN = 512  # other tokens do not see it, as in ColBERT's queries
QUERY_TOKEN = 1024  # all of a sequence that is looked up in a table of queries instead of being computed


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole sequences packed without padding, homogeneous in model and output kind."""

    model: str  # the served model's name
    outputs: OutputKind
    token_ids: NDArray[np.int32]  # [T], each 0 <= id < vocab_size
    cu_seqlens: NDArray[np.int32]  # [B + 1], sequence i is token_ids[cu_seqlens[i] : cu_seqlens[i + 1]]
    token_type_ids: NDArray[np.int32] | None = None  # [T], perhaps with the flags above; None = all zero

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        """B."""
        return len(self.cu_seqlens) - 1

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence."""
        return int(np.diff(self.cu_seqlens).max(initial=0))


@dataclass(frozen=True, slots=True)
class Rows:
    """Dense or ragged float32 rows of one output kind."""

    values: NDArray[np.float32]  # dense: [B, D]; ragged: [N, D] with N = offsets[-1]
    offsets: NDArray[np.int32] | None = None  # ragged: [B + 1], sequence i has values[offsets[i] : offsets[i + 1]]


Results = dict[OutputKind, Rows]  # one entry for each single flag in Batch.outputs


class EngineErrorKind(enum.IntEnum):
    """What a failed batch means for what was in it."""

    FAILED = 0  # this batch failed, the engine goes on; some sequence in it may be the cause
    OUT_OF_MEMORY = 1  # this batch was too large for the memory left; halves may pass
    NON_FINITE = 2  # some row is NaN or infinite
    FATAL = 3  # the engine can't go on; its process exits after this answer


class EngineError(Exception):
    """One batch could not be computed. The message is for the log, never for a client."""

    def __init__(self, kind: EngineErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EngineClosed(Exception):
    """Raised by `collect` once the engine is closed and everything submitted was collected."""


class ModelError(Exception):
    """A model can't be served; the message is one line that says why and what to do about it."""


class DeviceTrouble(ModelError):
    """It is the device that fails the model: its memory is too small, or it is lost. Another engine fares no better."""


class ProcessSpent(ModelError):
    """An engine has left its process such that no other can be tried in it; another start may name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the rest of the server needs to know about a loaded model."""

    name: str  # as served
    engine: str  # which engine runs it: "fake", "transformers", …
    reason: str  # why this engine
    outputs: OutputKind  # what it can give
    dimensions: int  # D of a pooled row; of a model that gives none, numbers in a row of its own output
    max_seqlen: int  # tokens a sequence, special tokens included
    vocab_size: int
    pooling: str  # "cls", "mean", "last", …; joined ones with a + between them
    normalize: bool  # whether a pooled row is to be scaled to length 1 before it is handed out
    dtype: str  # compute type: "float32", …
    device: str  # "cpu", "cuda:0", …
    architecture: str  # model_type of config.json, "" where there is none
    notes: tuple[str, ...] = ()  # what was decided at load and why, a line each; the first says how it is computed
    token_dimensions: int | None = None  # D of a token's row; None = `dimensions`
    is_padded: bool = False  # sequences of like length are computed padded to the longest of them, instead of packed


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """How large a batch may be and how many an engine holds."""

    max_num_tokens: int  # T of a batch, a hard limit; never below max_seqlen
    max_num_seqs: int  # B of a batch
    max_seqlen: int  # tokens of one sequence
    token_buckets: tuple[int, ...] = field(default=())  # T at which a batch is as cheap as anything below; () = none
    streams: int = 1  # batches computed at the same time; one batch runs on one stream
    depth: int = 2  # batches submitted and not collected: streams + 1 where the engine can stage, 1 where it blocks
    overlaps: bool = False  # a staged batch begins as soon as the one ahead leaves a part of its stream idle
    tokens_per_second: float = 0.0  # of one stream beside the others, measured at warm-up; 0 = not known
    target_num_tokens: int = 0  # T from which on a batch gains no speed worth having; 0 = not known
    max_batch_seconds: float = 0.25  # of computing, by choice: how long work may sit in one batch
    max_batch_seconds_mixed: float = 0.05  # the same while bulk work waits and interactive work is about


class Engine(Protocol):
    """What the worker drives. `submit` and `collect` are called from two threads, each always from the same."""

    @property
    def info(self) -> ModelInfo:
        """Fixed once loaded."""
        ...

    @property
    def limits(self) -> EngineLimits:
        """Fixed once loaded."""
        ...

    def submit(self, batch: Batch) -> int:
        """Take a batch and return its ticket; blocks only while `limits.depth` batches are in the engine."""
        ...

    def collect(self) -> tuple[int, Results | EngineError]:
        """Block until some batch is finished, in any order. Raises EngineClosed after `close`."""
        ...

    def close(self) -> None:
        """Finish what was submitted and let `collect` end."""
        ...
