"""The messages between an engine worker, its supervisor and its batch manager. Needs numpy alone.

The supervisor sends START. Then a batch manager connects; the worker sends READY once the model is warm, takes BATCH
and CANARY frames (never more unanswered than its limits say) and answers each with RESULT or FAILED under the same
frame id. It ends its process at EXIT.
"""

import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.machine.cuda_driver import Gpu
from engine.types import (
    MAX_NUM_SEQS,
    Batch,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelInfo,
    OutputKind,
    Results,
    Rows,
    kind_of,
)
from wire.dataclass_json import from_json, to_json
from wire.frames import Buffer
from wire.parts import DTYPES, Part, in_order, taken_apart

_T = TypeVar("_T")

READY = 0x0400
BATCH = 0x0401
RESULT = 0x0402
FAILED = 0x0403
CANARY = 0x0404  # no payload: compute the batch whose rows are known from the start; its RESULT has no rows
EXIT = 0x0405  # no payload, no answer: this engine is sick, and the supervisor starts another

# outputs (u16), flags (u16), B (u32), T (u32); then int32 cu_seqlens [B+1], ids [T], and the parts as in wire.parts
_BATCH = struct.Struct("<HHII")
_RESULT = struct.Struct("<d")  # seconds of computing; then the rows
# rows: number of outputs; then for each output _ROWS, int32 offsets, float32 values
_COUNT = struct.Struct("<I")
_ROWS = struct.Struct("<HHIII")  # output kind, is ragged, number of offsets, rows, D
_FAILED = struct.Struct("<I")  # EngineErrorKind; then the message in UTF-8
# Flags of a BATCH beside those of its parts; plain numbers, because an IntFlag's operators take long.
_IS_URGENT, _GIVES_WAY = 2, 4
_MAX_NUM_TOKENS = 16_384  # of a batch, by default


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of an engine's `load`."""

    device: str  # "cpu", "cuda:0", …
    path: str = ""  # the model's folder; "" only for the fake engine
    dtype: str = "auto"
    quantization: str = "none"
    pooling: str | None = None  # None = what the folder says
    task: str | None = None  # None = what the folder says
    trusted_keys: tuple[str, ...] = ()  # of config.json: see engine.model.model_folder.read
    template: str | None = None  # of a reranker: a name or a file; None = what the folder says
    max_seqlen: int | None = None  # tokens of one sequence; None = the model's limit
    max_num_tokens: int | None = None  # of a batch; None = the engine's default
    max_num_seqs: int | None = None  # of a batch; None = the engine's default
    num_threads: int = 1  # of the CPU
    cache_dir: str | None = None  # for compiled and quantized models; None = none is kept
    max_cache_bytes: int | None = None  # of compiled models, and of quantized ones; None = engine.store.cache's own
    memory_share: float = 1.0  # of the GPU's memory that this process may take, in (0, 1]
    gpu: Gpu | None = None  # as the driver describes it; None on the CPU
    loras: tuple[tuple[str, str], ...] = ()  # name and folder of each adapter that is kept apart; numbered from 1
    least_tried: int = 0  # tokens of a sequence that the self-test must run, however long that takes
    # Options that one engine alone reads, by its name and as JSON: the fields of its engine.offer.Options.
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    def batch_limits(self, max_seqlen: int) -> dict[str, Any]:
        """What bounds each batch, by the names of EngineLimits."""
        return {
            "max_num_tokens": max(self.max_num_tokens or _MAX_NUM_TOKENS, max_seqlen),
            "max_num_seqs": self.max_num_seqs or MAX_NUM_SEQS,
            "max_seqlen": max_seqlen,
        }

    def own_of(self, engine: str, kind: type[_T]) -> _T:
        """The engine's own options. Raises ProtocolError where they are of another form."""
        return from_json(kind, self.own.get(engine, {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """START: what a worker loads and serves."""

    listener_fd: int  # of the worker's listening Unix socket
    engine: str  # a name of engine.registry
    model: str  # as served
    reason: str  # why this engine, for the log and /info
    options: LoadOptions
    spin_seconds: float = 0.0  # before it sleeps, after a batch that it computed alone


def encode_ready(info: ModelInfo, limits: EngineLimits) -> list[Buffer]:
    """READY in JSON, sent once for each connection."""
    return [json.dumps({"info": to_json(info), "limits": to_json(limits)}).encode()]


def decode_ready(payload: Buffer) -> tuple[ModelInfo, EngineLimits]:
    """The inverse of `encode_ready`. Raises ProtocolError."""
    fields = json.loads(bytes(payload))
    return from_json(ModelInfo, fields["info"]), from_json(EngineLimits, fields["limits"])


def encode_batch(
    outputs: OutputKind,
    seqlens: Sequence[int],
    token_ids: Sequence[Buffer],
    parts: Mapping[Part, Sequence[Buffer]] = MappingProxyType({}),
    *,
    is_urgent: bool = False,
    gives_way: bool = False,
) -> list[Buffer]:
    """BATCH. token_ids, int32, and each of the parts: in pieces of any size, which are not copied."""
    cu_seqlens = array("i", accumulate(seqlens, initial=0))  # which for few sequences is quicker than numpy
    flags = sum(parts) | _IS_URGENT * is_urgent | _GIVES_WAY * gives_way
    header = _BATCH.pack(outputs, flags, len(seqlens), cu_seqlens[-1])
    others = chain.from_iterable(in_order(parts)) if parts else ()
    return [header, cu_seqlens.tobytes(), *token_ids, *others]


def decode_batch(model: str, payload: Buffer) -> Batch:
    """The inverse of `encode_batch`; the arrays are views of the payload. Raises ValueError or struct.error."""
    outputs, flags, num_seqs, num_tokens = _BATCH.unpack_from(payload)
    numbers = np.frombuffer(payload, np.int32, num_seqs + 1 + num_tokens, _BATCH.size)
    rest = memoryview(payload)[_BATCH.size + numbers.nbytes :]
    has_parts = flags & ~(_IS_URGENT | _GIVES_WAY) or len(rest)
    parts = taken_apart(rest, flags, num_seqs, num_tokens) if has_parts else {}
    batch = Batch(
        model=model,
        outputs=kind_of(outputs),
        cu_seqlens=numbers[: num_seqs + 1],
        token_ids=numbers[num_seqs + 1 :],
        **{part.field: np.frombuffer(values, DTYPES[part]) for part, values in parts.items()},
        is_urgent=bool(flags & _IS_URGENT),
        gives_way=bool(flags & _GIVES_WAY),
    )
    if batch.shared is not None:
        _check_shared(batch.shared, np.diff(batch.cu_seqlens))
    return batch


def _check_shared(shared: NDArray[np.int32], seqlens: NDArray[np.int32]) -> None:
    """Raises ValueError where a sequence shares more than it may: engines would take the tokens of another one."""
    before = np.append(np.int32(0), seqlens[:-1])
    if (shared < 0).any() or (shared >= seqlens).any() or (shared > before).any():
        raise ValueError("a sequence shares more tokens with the one before than it may")


def encode_rows(results: Results) -> list[Buffer]:
    """Results as a part of any frame. Contiguous rows are not copied."""
    head, parts = _COUNT.pack(len(results)), list[Buffer]()
    for kind, rows in results.items():
        values = np.ascontiguousarray(rows.values, np.float32)
        offsets = b"" if rows.offsets is None else np.ascontiguousarray(rows.offsets, np.int32).tobytes()
        head += _ROWS.pack(kind, rows.offsets is not None, len(offsets) // 4, *values.shape) + offsets
        parts += [head, values.reshape(-1).data.cast("B")]
        head = b""
    return parts or [head]


def decode_rows(payload: Buffer, at: int) -> Results:
    """The inverse of `encode_rows`, from byte `at`; the rows are views of the payload."""
    (num_outputs,) = _COUNT.unpack_from(payload, at)
    at += _COUNT.size
    results: Results = {}
    for _ in range(num_outputs):
        kind, is_ragged, num_offsets, num_rows, width = _ROWS.unpack_from(payload, at)
        at += _ROWS.size
        offsets = np.frombuffer(payload, np.int32, num_offsets, at) if is_ragged else None
        at += 4 * num_offsets
        values = np.frombuffer(payload, np.float32, num_rows * width, at).reshape(num_rows, width)
        at += values.nbytes
        results[kind_of(kind)] = Rows(values, offsets)
    return results


def encode_result(results: Results, compute_seconds: float) -> list[Buffer]:
    """RESULT: the rows of a batch."""
    return [_RESULT.pack(compute_seconds), *encode_rows(results)]


def decode_result(payload: Buffer) -> tuple[Results, float]:
    """The inverse of `encode_result`; the rows are views of the payload."""
    (compute_seconds,) = _RESULT.unpack_from(payload)
    return decode_rows(payload, _RESULT.size), compute_seconds


def encode_failed(error: EngineError) -> list[Buffer]:
    """FAILED: why a batch has no rows."""
    return [_FAILED.pack(error.kind), str(error).encode()]


def decode_failed(payload: Buffer) -> EngineError:
    """The inverse of `encode_failed`."""
    (kind,) = _FAILED.unpack_from(payload)
    return EngineError(EngineErrorKind(kind), bytes(payload[_FAILED.size :]).decode())
