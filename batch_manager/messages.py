"""The messages of a batch manager: those that it is sent and those that it sends.

The supervisor sends START. A frontend sends SUBMIT, answered by ANSWER or REFUSED under the same id; CANCEL; REFUTED.
"""

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.messages import decode_rows, encode_rows
from engine.types import OutputKind, Results, Rows, kind_of
from wire.frames import Buffer
from wire.parts import Part, Parts, in_order, taken_apart
from wire.records import light_dataclass
from wire.vocabulary import RequestClass

SUBMIT = 0x0300
ANSWER = 0x0301
REFUSED = 0x0302
CANCEL = 0x0303  # no payload, no answer
REFUTED = 0x0304  # model (u16); a request that failed there was computed by another batch manager; no answer

# deadline in time.monotonic() seconds or inf (f64), model (u16), class (u8), flags of the parts (u8), outputs (u16),
# key (u16), weight of the key (f32), sequences (u32); then int32 lengths [n], ids, and the parts as wire.parts has
# them
_SUBMIT = struct.Struct("<dHBBHHfI")
_WORK = slice(8, None)  # all but the deadline
_CLASSES = tuple(RequestClass)
_REFUTED = struct.Struct("<H")
# seconds waiting, seconds computing, whether another had asked for the same; then the rows as engine.messages has them
_ANSWER = struct.Struct("<dd?7x")
_REFUSED = struct.Struct("<Bif")  # reason, index of the sequence (-1 = none), seconds after which to try again


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How batches are sized and shared. Seconds and tokens; see docs/ARCHITECTURE.md for how to choose them."""

    max_batch_tokens: int | None = None  # None = each engine's own measured limit, beyond which it gains nothing
    # Below this, smaller batches save no time worth having; an engine whose fixed cost alone is above the
    # allowed seconds would otherwise be driven down to one sequence a batch.
    min_batch_tokens: int = 256
    # Interactive work counts as present while it waits and for this long after the last of it arrived: the batch that
    # a query has to wait for was packed before the query arrived.
    interactive_memory: float = 1.0
    # The same for batches that documents behind one query make longer (`EngineLimits.group_tokens`): a query that comes
    # after a pause waits for one of these, so pauses have to be rare for it.
    group_memory: float = 30.0
    bulk_share: float = 0.3  # of each batch while interactive work waits too
    engine_restart_grace: float = 5.0  # how long work waits for a model without an engine, at the start too
    retry_after: float = 5.0  # sent to clients that are refused because there is no engine
    # How old the newest batch may be for its speed to be a reason to refuse what can't be in time. An idle engine is
    # tried instead: else a rate that was measured in a bad moment would be believed for ever.
    forecast_memory: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address where an engine listens, and the outputs that it computes."""

    path: str  # of a Unix socket
    model: int  # index
    index: int  # of the engine among all of the server's


@dataclass(frozen=True, slots=True)
class ManagerAddress:
    """The address where a batch manager listens, and the models (by index) it has engines for."""

    path: str
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStart:
    """START for a batch manager."""

    listener_fd: int | None  # of its listening Unix socket, for frontends; None = it is in the process of the only one
    page_fd: int  # the shared page
    models: list[str]  # names, in the order of their indices
    engines: list[EngineAddress]  # the engines of this manager
    policy: Policy


class RequestRefusal(enum.IntEnum):
    """Why a request got no rows."""

    DEADLINE = 0  # it passed while the request waited
    NO_ENGINE = 1  # none was there for longer than the grace, or the batch managers that had the request died
    ENGINE_FAILED = 2  # the engine failed on this very sequence
    POISON = 3  # this very sequence took an engine process down
    NON_FINITE = 4  # this very sequence gave NaN or infinite numbers
    TOO_LONG = 5  # longer than the engine can take
    STOPPING = 6  # the server is going down
    ANSWER_TOO_LARGE = 7  # its rows are more bytes than a frame can carry; fewer sequences would pass
    TOO_LATE = 8  # the next batch would not be done by its deadline


class RequestRefused(Exception):
    """A request got no rows; `index` is the sequence that is to blame, -1 where none is."""

    def __init__(self, reason: RequestRefusal, index: int = -1, *, retry_after: float = 0.0) -> None:
        super().__init__(f"{reason.name} at index {index}")
        self.reason = reason
        self.index = index
        self.retry_after = retry_after  # seconds


@light_dataclass(frozen=True, slots=True)
class Submission:
    """The sequences of one request, in order."""

    model: int  # index of the model in this server
    request_class: RequestClass
    outputs: OutputKind
    deadline: float  # time.monotonic() seconds; inf = none
    seqlens: Sequence[int]  # tokens of each sequence
    token_ids: Buffer  # int32 [sum(seqlens)]
    parts: Parts = field(default_factory=dict)
    key: int = 0  # index of the API key; below 65,536
    weight: float = 1.0  # of the key: its part of the engines while others wait too, in proportion to theirs

    @property
    def shared(self) -> Sequence[int]:
        """The tokens that each sequence has in common with the one before; () = none."""
        values = self.parts.get(Part.SHARED)
        return () if values is None else memoryview(values).cast("B").cast("i").tolist()


@light_dataclass(frozen=True, slots=True)
class RequestResults:
    """Rows in the order of the request's sequences."""

    results: Results
    queue_seconds: float  # longest wait of a sequence in the batch manager
    compute_seconds: float  # of the batches it was in, summed
    has_joined: bool = False  # whether the rows are those of a request that had asked for the same before


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of one kind, one after another."""
    values = np.concatenate([rows.values for rows in parts])
    seqlens = [np.diff(rows.offsets) for rows in parts if rows.offsets is not None]
    if not seqlens:
        return Rows(values)
    return Rows(values, np.cumsum(np.concatenate([[0], *seqlens]), dtype=np.int32))


def encode_submission(submission: Submission) -> list[Buffer]:
    """SUBMIT; the ids are not copied."""
    header = _SUBMIT.pack(
        submission.deadline,
        submission.model,
        submission.request_class,
        sum(submission.parts),
        submission.outputs,
        submission.key,
        submission.weight,
        len(submission.seqlens),
    )
    seqlens = struct.pack(f"<{len(submission.seqlens)}i", *submission.seqlens)
    parts = in_order(submission.parts) if submission.parts else ()
    return [header, seqlens, submission.token_ids, *parts]


def decode_submission(payload: memoryview) -> Submission:
    """The inverse of `encode_submission`; the ids and the parts are views of the payload. Raises ValueError where they
    are of another size.
    """
    deadline, model, request_class, flags, outputs, key, weight, num_seqs = _SUBMIT.unpack_from(payload)
    seqlens = struct.unpack_from(f"<{num_seqs}i", payload, _SUBMIT.size)
    ids = payload[_SUBMIT.size + 4 * num_seqs :]
    parts: Parts = {}
    if flags:
        num_tokens = sum(seqlens)
        ids, rest = ids[: 4 * num_tokens], ids[4 * num_tokens :]
        parts = taken_apart(rest, flags, num_seqs, num_tokens)
    request_class, outputs = _CLASSES[request_class], kind_of(outputs)
    return Submission(model, request_class, outputs, deadline, seqlens, ids, parts, key, weight)


def work_of(payload: memoryview) -> bytes:
    """The work that a SUBMIT asks for: all of it but the deadline, so that it is equal where the work is."""
    return bytes(payload[_WORK])


def encode_answer(answer: RequestResults) -> list[Buffer]:
    """ANSWER; the rows are not copied where they are contiguous."""
    head = _ANSWER.pack(answer.queue_seconds, answer.compute_seconds, answer.has_joined)
    return [head, *encode_rows(answer.results)]


def decode_answer(payload: memoryview) -> RequestResults:
    """The inverse of `encode_answer`; the rows are views of the payload."""
    queue_seconds, compute_seconds, has_joined = _ANSWER.unpack_from(payload)
    return RequestResults(decode_rows(payload, _ANSWER.size), queue_seconds, compute_seconds, has_joined)


def encode_refused(refused: RequestRefused) -> list[Buffer]:
    """REFUSED."""
    return [_REFUSED.pack(refused.reason, refused.index, refused.retry_after)]


def decode_refused(payload: memoryview) -> RequestRefused:
    """The inverse of `encode_refused`."""
    reason, index, retry_after = _REFUSED.unpack(payload)
    return RequestRefused(RequestRefusal(reason), index, retry_after=retry_after)


def encode_refuted(model: int) -> list[Buffer]:
    """REFUTED."""
    return [_REFUTED.pack(model)]


def decode_refuted(payload: memoryview) -> int:
    """The inverse of `encode_refuted`."""
    (model,) = _REFUTED.unpack(payload)
    return int(model)
