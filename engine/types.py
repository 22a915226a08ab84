"""The types that the batch manager and the engines share. Imports numpy and `wire` alone.

Shape legend: B sequences in a batch, T tokens in a batch (no padding), D numbers in a row.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wire.parts import OF_SEQUENCES, Part
from wire.records import light_dataclass


class OutputKind(enum.IntFlag):
    """A kind of output of a model for a batch. Flags are combined if one forward pass gives several kinds."""

    POOLED = 1  # one row a sequence: embeddings, before a final Normalize (see ModelInfo.normalize)
    LOGITS = 2  # one row of raw scores a sequence: rerankers, classifiers
    TOKENS = 4  # one row a token
    SPARSE = 8  # ragged rows of two numbers: a vocabulary id, exact in float32, and its weight, never zero
    TOKEN_LOGITS = 16  # one row of raw scores a token: token classifiers
    MULTI_VECTOR = 32  # one row a token, for late interaction

    def __and__(self, other: int) -> "OutputKind":
        """Return what IntFlag's does, which takes five times as long, and every request asks several times."""
        return kind_of(int.__and__(self, other))


kind_of = cache(OutputKind)  # making one of a number takes long, too


@cache
def kinds_in(outputs: OutputKind) -> tuple[OutputKind, ...]:
    """The single flags in `outputs`; walking an IntFlag takes long."""
    return tuple(outputs)


ROWS_OF_TOKENS = OutputKind.TOKENS | OutputKind.TOKEN_LOGITS | OutputKind.MULTI_VECTOR  # give one row a token

MAX_NUM_SEQS = 1024  # sequences of a batch, by default
MAX_CACHE_BYTES = 20_000_000_000  # of compiled models, by default
MAX_SENT = 4  # tokens sent for each that is computed: more are rare, and would take much memory in attention


def main_output(outputs: OutputKind) -> OutputKind:
    """The lowest of several flags: the main purpose of a model that gives them."""
    return OutputKind(outputs & -outputs)


OnStage = Callable[[str], object]  # told of each stage of a start as it begins, by a name that whoever does it gives


def untold(stage: str) -> None:
    """Tell nobody about a stage."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole sequences packed without padding, all for one model and the same output kinds."""

    model: str  # the served model's name
    outputs: OutputKind
    token_ids: NDArray[np.int32]  # [T], each 0 <= id < vocab_size
    cu_seqlens: NDArray[np.int32]  # [B + 1], sequence i is token_ids[cu_seqlens[i] : cu_seqlens[i + 1]]
    token_type_ids: NDArray[np.int32] | None = None  # [T], None = all zero
    marks: NDArray[np.uint8] | None = None  # [T], bits of wire.parts: PROMPT_TOKEN, …; None = all zero
    adapters: NDArray[np.int32] | None = None  # [B], the adapter that computes each, from 1; 0 and None = none
    shared: NDArray[np.int32] | None = None  # [B], leading tokens as of the sequence before: see wire.parts
    is_urgent: bool = field(default=False, kw_only=True)  # some of it is interactive work
    gives_way: bool = field(default=False, kw_only=True)  # urgent batches may come, and are not to wait long for it

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

    def marked(self, mark: int) -> NDArray[np.bool_] | None:
        """Whether each token [T] has this mark; None = none has it."""
        is_marked = None if self.marks is None else (self.marks & mark) != 0
        return None if is_marked is None or not is_marked.any() else is_marked

    def taken(self, is_taken: NDArray[np.bool_]) -> "Batch":
        """A batch of these sequences only, with all of its parts. is_taken: [B]."""
        seqlens = np.diff(self.cu_seqlens)
        tokens = np.repeat(is_taken, seqlens)
        shared = None if self.shared is None else _shared_of(self.shared, is_taken)
        return replace(
            self,
            shared=shared,
            token_ids=self.token_ids[tokens],
            cu_seqlens=np.cumsum([0, *seqlens[is_taken]], dtype=np.int32),
            **{
                part.field: values[is_taken if part in OF_SEQUENCES else tokens]
                for part in Part
                if part is not Part.SHARED and (values := getattr(self, part.field)) is not None
            },
        )


def _shared_of(shared: NDArray[np.int32], is_taken: NDArray[np.bool_]) -> NDArray[np.int32]:
    """What sequences share with the one before when only some are taken: the least on the way to it."""
    taken = np.flatnonzero(is_taken)
    if not len(taken):
        return shared[:0]
    found = np.minimum.reduceat(shared[: taken[-1] + 1], np.append(0, taken[:-1] + 1))
    found[0] = 0
    return found


@light_dataclass(frozen=True, slots=True)
class Rows:
    """Dense or ragged float32 rows of one output kind."""

    values: NDArray[np.float32]  # dense: [B, D]; ragged: [N, D] with N = offsets[-1]
    offsets: NDArray[np.int32] | None = None  # ragged: [B + 1], sequence i has values[offsets[i] : offsets[i + 1]]


Results = dict[OutputKind, Rows]  # one entry for each single flag in Batch.outputs


class EngineErrorKind(enum.IntEnum):
    """The kind of a failure, which says what it means for the batch's sequences."""

    FAILED = 0  # this batch failed, and the engine goes on; one of its sequences may be the cause
    OUT_OF_MEMORY = 1  # this batch was too large for the free memory; its halves may fit
    NON_FINITE = 2  # some row is NaN or infinite
    FATAL = 3  # the engine can't go on; its process exits after this answer


class EngineError(Exception):
    """One batch could not be computed. The message is for the log, never for a client."""

    def __init__(self, kind: EngineErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EngineClosed(Exception):
    """Raised by `collect` once the engine is closed and all its batches are collected."""


class ModelError(Exception):
    """A model can't be served; the message is one line that says why and what to do about it."""


class RowsDiffer(ModelError):
    """An engine's rows are not the model's. Another engine must pass a test at least as long."""

    def __init__(self, message: str, num_tokens: int) -> None:
        super().__init__(message)
        self.num_tokens = num_tokens  # of the longest sequence of the test


class DeviceTrouble(ModelError):
    """The device is at fault: its memory is too small, or it is lost. Another engine would fail, too."""


class ProcessSpent(ModelError):
    """An engine has spoiled its process, so no other engine can be tried in it. A new process can load another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts about a loaded model that the rest of the server needs."""

    name: str  # as served
    engine: str  # which engine runs it: "fake", "transformers", …
    reason: str  # why this engine was chosen
    outputs: OutputKind  # what it can compute
    dimensions: int  # D of a pooled row; of a model without them, D of its main output
    max_seqlen: int  # tokens a sequence, special tokens included
    vocab_size: int
    pooling: str  # "cls", "mean", "last", …; several are joined by +
    normalize: bool  # whether pooled rows are to be scaled to length 1 for clients
    dtype: str  # compute type: "float32", …
    device: str  # "cpu", "cuda:0", …
    architecture: str  # model_type of config.json, or ""
    notes: tuple[str, ...] = ()  # choices made at load and why, a line each; the first says how batches are computed
    token_dimensions: int | None = None  # D of a token's row; None = `dimensions`
    is_padded: bool = False  # whether sequences of similar length are padded to the longest, instead of packed
    shares_prefixes: bool = False  # whether it computes what sequences begin with alike once: see Batch.shared
    # sizes of FP8 products that the GPU has no kernel with scales by row for, and that are scaled afterwards: slower
    num_fallback_products: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """How large a batch may be, and how many batches an engine holds."""

    max_num_tokens: int  # T of a batch, at least max_seqlen; where prefixes are shared, of its unique tokens
    max_num_seqs: int  # B of a batch
    max_seqlen: int  # tokens of one sequence
    token_buckets: tuple[int, ...] = field(default=())  # sizes T that batches are best closed at; () = none
    streams: int = 1  # batches computed at the same time; one batch runs on one stream
    depth: int = 2  # batches submitted and not collected: streams + 1 if the engine can stage, 1 if it blocks
    # Whether it computes urgent batches before all others that it has not begun. It then takes `depth` urgent batches,
    # and `depth` others.
    puts_urgent_first: bool = False
    overlaps: bool = False  # whether a staged batch begins as soon as the one ahead leaves a part of its stream idle
    tokens_per_second: float = 0.0  # of one stream while all are busy, measured at warm-up; 0 = not known
    target_num_tokens: int = 0  # T above which larger batches are hardly faster per token; 0 = not known
    fixed_batch_seconds: float = 0.0  # of a batch, however few its tokens: on a GPU what starting its kernels takes
    max_batch_seconds: float = 0.25  # the longest that a batch may compute, by choice
    max_batch_seconds_mixed: float = 0.05  # the same while bulk work waits beside interactive work
    # Unique tokens up to which sequences may follow the one before, with which they share an eighth of their tokens or
    # more, in a batch that the times above would end, while no interactive work is about; 0 = none follow so.
    group_tokens: int = 0

    @property
    def max_sent_tokens(self) -> int:
        """T of a batch where prefixes are shared: attention takes each sequence whole, in memory of its own."""
        return MAX_SENT * self.max_num_tokens


class Engine(Protocol):
    """An engine with a loaded model. One thread calls `submit` and `compute_alone`, another one `collect`."""

    @property
    def info(self) -> ModelInfo:
        """Does not change after loading."""
        ...

    @property
    def limits(self) -> EngineLimits:
        """Does not change after loading."""
        ...

    def submit(self, batch: Batch) -> int:
        """Take a batch and return its ticket. Blocks only while `limits.depth` batches are in the engine, or, where it
        puts urgent ones first, as many of the same urgency.
        """
        ...

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        """Compute a batch in this thread, if nothing else is in the engine and that is the fastest way; else None."""
        ...

    def collect(self) -> tuple[int, Results | EngineError]:
        """Wait for a finished batch, in any order; its ticket and rows. Raises EngineClosed after `close`."""
        ...

    def close(self) -> None:
        """Finish the submitted batches; then `collect` raises EngineClosed."""
        ...


def compute(engine: Engine, batch: Batch) -> Results | EngineError:
    """The answer to a batch of an idle engine, computed as its worker has it computed."""
    if (results := engine.compute_alone(batch)) is not None:
        return results
    engine.submit(batch)
    return engine.collect()[1]
