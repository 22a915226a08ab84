"""The `fake` engine: no model, and rows made from a hash of the token ids, with marks and adapters where there are any.

With it the whole process tree can be tested and measured without weights. Latency and faults can be configured.
"""

import hashlib
import itertools
import os
import signal
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine import offer
from engine.blocking import BlockingEngine
from engine.messages import LoadOptions
from engine.registry import FAKE
from engine.types import (
    ROWS_OF_TOKENS,
    Batch,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    ModelInfo,
    OnStage,
    OutputKind,
    Results,
    Rows,
    kinds_in,
    untold,
)

TABLE_ROWS = 4096
IDENTITY_FLOATS = 4  # 16 bits of the hash each: integers that float32 holds exactly
_ACTIONS = ("exit", "stop", "hang", "fail", "nan", "oom", "leak", "wrong")  # see Fault
_PLACES = ("load", "batch", "after", "token", "tokens")
_LEAK_BYTES = 160
_DEPTH = 2


def table(dimensions: int) -> NDArray[np.float32]:
    """The fixed rows, float32 [4096, dimensions], the same in every process."""
    return np.random.default_rng(seed=4096).standard_normal((TABLE_ROWS, dimensions), dtype=np.float32)


def identity(token_ids: bytes | memoryview, others: bytes = b"") -> NDArray[np.uint16]:
    """The 64-bit hash of one sequence's int32 ids and its other parts, uint16 [4].

    others: uint8 marks of all tokens and the int32 adapter; empty where all are zero
    """
    return np.frombuffer(hashlib.blake2b(bytes(token_ids) + others, digest_size=8).digest(), "<u2")


def row(fixed: NDArray[np.float32], token_ids: bytes | memoryview, others: bytes = b"") -> NDArray[np.float32]:
    """The engine's row for one sequence, float32 [dimensions]: the reference for tests. others: see identity."""
    answer: NDArray[np.float32] = fixed[zlib.crc32(token_ids) % TABLE_ROWS].copy()
    answer[:IDENTITY_FLOATS] = identity(token_ids, others)
    return answer


def token_rows(fixed: NDArray[np.float32], token_ids: bytes | memoryview) -> NDArray[np.float32]:
    """The engine's rows for the tokens of one sequence, float32 [S, dimensions]: the reference for tests.

    Each is the sequence's row with the token's position (0, 1, …) added to its identity, modulo 65,536.
    """
    answer = np.repeat(row(fixed, token_ids)[None], len(token_ids) // 4, axis=0)
    return _mix_in(answer, np.arange(len(answer)))


def _mix_in(rows: NDArray[np.float32], positions: NDArray[np.integer]) -> NDArray[np.float32]:
    numbers = rows[:, :IDENTITY_FLOATS].astype(np.int64) + positions[:, None]
    rows[:, :IDENTITY_FLOATS] = numbers % 65_536
    return rows


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault, ACTION@WHERE:VALUE or ACTION@WHERE:VALUE/DEVICE, such as exit@batch:3, nan@token:999,
    fail@after:20/b or exit@load. Without a device it is on all.
    """

    # exit, stop, hang, fail, nan, oom; wrong: rows with the other sign; leak: keeps _LEAK_BYTES for each sequence
    action: str
    # load; batch: the VALUE-th since the start; after: all after that one; token: batches with this id; tokens: batches
    # of more tokens
    where: str
    value: int
    device: str = ""

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """The fault that a flag describes. Raises ModelError if the text has another form."""
        fault, _, device = text.partition("/")
        action, _, condition = fault.partition("@")
        where, _, value = condition.partition(":")
        if action not in _ACTIONS or where not in _PLACES or not (value.isdecimal() or where == "load"):
            raise ModelError("--fake-fault takes ACTION@WHERE:VALUE, for example exit@batch:3")
        return cls(action, where, int(value or 0), device)

    def strikes(self, batch: Batch, batch_number: int) -> bool:
        """Whether the fault occurs in this batch."""
        if self.where == "batch":
            return batch_number == self.value
        if self.where == "after":
            return batch_number > self.value
        if self.where == "token":
            return bool((batch.token_ids == self.value).any())
        return self.where == "tokens" and batch.num_tokens > self.value


@dataclass(frozen=True, kw_only=True)
class Options(offer.Options):
    """Options that only this engine reads, and what it has to know of the model's folder."""

    fake_dim: int = 1024  # numbers in a row
    fake_cost_ms: float = 0.0  # milliseconds for each batch
    fake_tokens_per_second: float = 0.0  # added cost of a batch's tokens; 0 = none
    fake_fault: tuple[str, ...] = ()  # see Fault.parse
    vocab_size: int = 1
    outputs: OutputKind = OutputKind.POOLED | OutputKind.TOKENS
    labels: tuple[str, ...] = ()  # a number in a row of scores for each, and at least one


OFFER = offer.Offer(options=Options)


class FakeEngine(BlockingEngine):
    """Computes in the thread that collects, so that one batch runs while the next one waits."""

    def __init__(self, info: ModelInfo, limits: EngineLimits, *, options: Options, faults: Sequence[Fault]) -> None:
        super().__init__(info=info, limits=limits)
        self._options = options
        self._faults = faults
        self._num_labels = max(len(options.labels), 1)
        self._table = table(info.dimensions)
        self._num_computed = 0
        self._leaked: list[bytes] = []
        self._never = threading.Event()  # never set; a wait for it with a timeout takes that long

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        """See engine.types.Engine. Faults and costs are for the thread that collects."""
        options = self._options
        return None if self._faults or options.fake_cost_ms or options.fake_tokens_per_second else self._results(batch)

    def _compute(self, batch: Batch) -> Results:
        self._num_computed += 1
        striking = [fault.action for fault in self._faults if fault.strikes(batch, self._num_computed)]
        for action in striking:
            self._strike(action, batch)
        rate = self._options.fake_tokens_per_second
        seconds = self._options.fake_cost_ms / 1000 + (batch.num_tokens / rate if rate else 0)
        if seconds:
            self._never.wait(seconds)
        results = self._results(batch)
        if "nan" in striking:
            for rows in results.values():
                rows.values[0, 0] = np.nan
        if "wrong" in striking:
            return {kind: Rows(-rows.values, rows.offsets) for kind, rows in results.items()}
        return results

    def _results(self, batch: Batch) -> Results:
        results: Results = {}
        pooled = self._rows(batch)
        if batch.outputs & ROWS_OF_TOKENS:
            of_tokens = _of_tokens(pooled, batch)
        for kind in kinds_in(batch.outputs):
            match kind:
                case OutputKind.POOLED:
                    results[kind] = Rows(pooled)
                case OutputKind.LOGITS:
                    results[kind] = Rows(pooled[:, : self._num_labels])
                case OutputKind.TOKEN_LOGITS:
                    results[kind] = Rows(of_tokens[:, : self._num_labels], batch.cu_seqlens)
                case OutputKind.SPARSE:
                    results[kind] = _counts(batch)
                case _:
                    results[kind] = Rows(of_tokens, batch.cu_seqlens)
        return results

    def _rows(self, batch: Batch) -> NDArray[np.float32]:
        ids = batch.token_ids.data.cast("B")
        bounds = (batch.cu_seqlens * 4).tolist()
        sequences = [ids[start:end] for start, end in itertools.pairwise(bounds)]
        rows = self._table[[zlib.crc32(sequence) % TABLE_ROWS for sequence in sequences]]
        digests = b"".join([hashlib.blake2b(sequence, digest_size=8).digest() for sequence in sequences])
        rows[:, :IDENTITY_FLOATS] = np.frombuffer(digests, "<u2").reshape(-1, IDENTITY_FLOATS)
        if batch.marks is not None or batch.adapters is not None:
            for number, (sequence, others) in enumerate(zip(sequences, _others(batch), strict=True)):
                rows[number, :IDENTITY_FLOATS] = identity(sequence, others)
        return rows

    def _strike(self, action: str, batch: Batch) -> None:
        if action == "exit":
            os._exit(70)
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif action == "hang":
            self._never.wait()
        elif action == "oom":
            raise EngineError(EngineErrorKind.OUT_OF_MEMORY, "planted: out of memory")
        elif action == "fail":
            raise EngineError(EngineErrorKind.FAILED, "planted: failed")
        elif action == "leak":
            self._leaked.append(b"\1" * (_LEAK_BYTES * batch.num_seqs))


def _others(batch: Batch) -> Iterator[bytes]:
    """The parts beside the ids of each sequence, as `identity` takes them."""
    marks = np.zeros(batch.num_tokens, np.uint8) if batch.marks is None else batch.marks
    adapters = np.zeros(batch.num_seqs, np.int32) if batch.adapters is None else batch.adapters
    for adapter, (start, end) in zip(adapters, itertools.pairwise(batch.cu_seqlens.tolist()), strict=True):
        own = marks[start:end]
        yield own.tobytes() + adapter.tobytes() if adapter or own.any() else b""


def _of_tokens(rows: NDArray[np.float32], batch: Batch) -> NDArray[np.float32]:
    seqlens = np.diff(batch.cu_seqlens)
    positions = np.arange(batch.num_tokens) - np.repeat(batch.cu_seqlens[:-1], seqlens)
    return _mix_in(np.repeat(rows, seqlens, axis=0), positions)


def _counts(batch: Batch) -> Rows:
    """Ragged rows [N, 2]: each id of a sequence, and how often it occurs."""
    entries = [
        np.stack(np.unique(batch.token_ids[start:end], return_counts=True), axis=1)
        for start, end in itertools.pairwise(batch.cu_seqlens.tolist())
    ]
    offsets = np.cumsum([0, *map(len, entries)], dtype=np.int32)
    return Rows(np.concatenate(entries).astype(np.float32), offsets)


def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> FakeEngine:
    """The engine that the options describe. Raises ModelError if one is wrong."""
    on_stage("load")
    own = options.own_of(FAKE, Options)
    assert options.max_seqlen is not None
    faults = [fault for fault in map(Fault.parse, own.fake_fault) if fault.device in ("", options.device)]
    if any(fault.where == "load" for fault in faults):
        os._exit(70)
    if own.fake_dim < IDENTITY_FLOATS:
        raise ModelError(f"--fake-dim must be at least {IDENTITY_FLOATS}")
    info = ModelInfo(
        name=name,
        engine=FAKE,
        reason=reason,
        outputs=own.outputs,
        dimensions=own.fake_dim,
        max_seqlen=options.max_seqlen,
        vocab_size=own.vocab_size,
        pooling="none",
        normalize=False,
        dtype="float32",
        device=options.device,
        architecture="",
        notes=("rows are made of the token ids' hash, not by a model",),
    )
    batch = options.batch_limits(options.max_seqlen)
    # the cost is linear, and faults count the batches of a warm-up
    limits = EngineLimits(**batch, depth=_DEPTH, target_num_tokens=batch["max_num_tokens"])
    return FakeEngine(info, limits, options=own, faults=faults)
