"""The requests that a batch manager holds, with their ids and rows so far, and which frontends wait for each.

Those that ask for the very same are one. A client that sends a request a second time, because the first answer takes
long, so costs no second computation. The same means every byte that could change the rows, and the API key and the
class: only the deadlines may differ.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batch_manager.messages import Submission, join_rows
from batch_manager.scheduling.batches import ScheduledBatch, ScheduledRequest, Slice
from engine.types import OutputKind, Results, Rows
from wire.connection import Connection
from wire.frames import Buffer
from wire.parts import Part, Parts, cut, size_of

_SHARED_BYTES = 4  # of one sequence
MAX_JOINED_BYTES = 1 << 20  # of what is asked for, 260,000 tokens, as it is kept once more to be found again


class Waiter(NamedTuple):
    """A frontend that asked, under its own id for that."""

    connection: Connection
    frame_id: int
    arrived: float  # time.monotonic() seconds
    has_joined: bool = False  # whether another had asked for the same before


class Assembly:
    """The rows of one request that come in parts. They are copied, so that no answer of an engine stays in memory for
    the sake of some of its rows.
    """

    __slots__ = ("_dense", "_num_seqs", "_ragged")

    def __init__(self, num_seqs: int) -> None:
        self._num_seqs = num_seqs
        self._dense: dict[OutputKind, NDArray[np.float32]] = {}
        self._ragged: dict[OutputKind, list[tuple[int, Rows]]] = {}

    def put(self, parts: Results, *, start: int, stop: int) -> None:
        """The rows of sequences [start, stop) of the request."""
        for kind, part in parts.items():
            if part.offsets is None:
                self._dense_rows(kind, part.values.shape[1])[start:stop] = part.values
            else:
                self._ragged.setdefault(kind, []).append((start, Rows(part.values.copy(), part.offsets.copy())))

    def results(self) -> Results:
        """All rows, in the order of the request's sequences; every part must be in."""
        results = {kind: Rows(values) for kind, values in self._dense.items()}
        for kind, parts in self._ragged.items():
            results[kind] = join_rows([rows for _, rows in sorted(parts, key=lambda part: part[0])])
        return results

    def _dense_rows(self, kind: OutputKind, width: int) -> NDArray[np.float32]:
        rows = self._dense.get(kind)
        if rows is None:
            rows = self._dense[kind] = np.empty((self._num_seqs, width), np.float32)
        return rows


class HeldRequest:
    """One request until it is answered: who waits, its ids, its rows so far, its times in seconds.

    work  what is asked for, as bytes that only the same work has; none = it is not looked for
    """

    __slots__ = ("_assembly", "_whole", "compute_seconds", "queue_seconds", "request", "submission", "waiters", "work")

    def __init__(self, waiter: Waiter, *, submission: Submission, request: ScheduledRequest, work: bytes = b"") -> None:
        self.waiters = {(waiter.connection, waiter.frame_id): waiter}
        self.work = work
        self.submission = submission
        self.request = request
        self.queue_seconds = 0.0
        self.compute_seconds = 0.0
        self._whole: Results | None = None
        self._assembly: Assembly | None = None

    def put(self, results: Results, at: int, slice_: Slice, *, num_seqs: int) -> None:
        """A slice has the rows from sequence `at` on of a batch of so many. Those that come all at once are kept as
        views.
        """
        num_own = slice_.stop - slice_.start
        if num_own < num_seqs:
            results = {kind: cut_rows(rows, at, at + num_own) for kind, rows in results.items()}
        if num_own == self.request.num_seqs:
            self._whole = results
            return
        if self._assembly is None:
            self._assembly = Assembly(self.request.num_seqs)
        self._assembly.put(results, start=slice_.start, stop=slice_.stop)

    def results(self) -> Results:
        """All rows, in the order of the request's sequences; all must be in."""
        if self._whole is not None:
            return self._whole
        assert self._assembly is not None, "some rows are in"
        return self._assembly.results()

    def ids_of(self, slice_: Slice) -> Buffer:
        """The ids of a slice of the request; a view."""
        ids = self.submission.token_ids
        if slice_.stop - slice_.start == self.request.num_seqs:
            return ids
        cu_seqlens = self.request.cu_seqlens
        return memoryview(ids)[4 * cu_seqlens[slice_.start] : 4 * cu_seqlens[slice_.stop]]

    def parts_of(self, slice_: Slice) -> Parts:
        """The parts beside the ids of a slice of the request; views."""
        start, stop = ((at, self.request.cu_seqlens[at]) for at in (slice_.start, slice_.stop))
        parts = cut(self.submission.parts, start, stop)
        if Part.SHARED in parts:  # what the first shares with one that is not before it is computed again
            parts[Part.SHARED] = bytes(_SHARED_BYTES) + parts[Part.SHARED][_SHARED_BYTES:]
        return parts


class InFlight:
    """All requests that are held."""

    def __init__(self) -> None:
        self.by_id: dict[int, HeldRequest] = {}  # each request by its request's id
        self._by_work: dict[bytes, HeldRequest] = {}
        self._frontends: dict[Connection, dict[int, int]] = {}  # frame id -> request id

    @property
    def frontends(self) -> Collection[Connection]:
        """The frontends that are connected."""
        return self._frontends.keys()

    def add_frontend(self, connection: Connection) -> None:
        """A frontend connected."""
        self._frontends[connection] = {}

    def remove_frontend(self, connection: Connection) -> list[ScheduledRequest]:
        """A frontend is gone; the requests that nobody waits for any more."""
        frames = self._frontends.pop(connection)
        left = [self._leave(request_id, connection, frame_id) for frame_id, request_id in frames.items()]
        return [request for request in left if request is not None]

    def add(self, waiter: Waiter, held: HeldRequest) -> None:
        """A request with its first waiter."""
        self._wait(waiter, held)
        self.by_id[held.request.request_id] = held
        if held.work:
            self._by_work[held.work] = held

    def join(self, work: bytes, connection: Connection, frame_id: int, now: float) -> ScheduledRequest | None:
        """One more waits for the request that is for this work; None where none is."""
        held = self._by_work.get(work)
        if held is None:
            return None
        waiter = Waiter(connection, frame_id, now, has_joined=True)
        self._wait(waiter, held)
        held.waiters[connection, frame_id] = waiter
        return held.request

    def leave(self, connection: Connection, frame_id: int) -> ScheduledRequest | None:
        """A frontend waits no more; the request, if nobody else does. One that is not held is no error."""
        request_id = self._frontends[connection].pop(frame_id, None)
        return None if request_id is None else self._leave(request_id, connection, frame_id)

    def remove(self, request_id: int) -> HeldRequest:
        """A request has ended: nobody waits for it any more."""
        held = self._forget(request_id)
        for waiter in held.waiters.values():
            del self._frontends[waiter.connection][waiter.frame_id]
        return held

    def _wait(self, waiter: Waiter, held: HeldRequest) -> None:
        # comes before all else, so that a frontend that breaks this rule leaves nothing behind
        frames = self._frontends[waiter.connection]
        assert waiter.frame_id not in frames, "a frame id belongs to one request at a time"
        frames[waiter.frame_id] = held.request.request_id

    def _leave(self, request_id: int, connection: Connection, frame_id: int) -> ScheduledRequest | None:
        held = self.by_id[request_id]
        del held.waiters[connection, frame_id]
        return None if held.waiters else self._forget(request_id).request

    def _forget(self, request_id: int) -> HeldRequest:
        held = self.by_id.pop(request_id)
        if held.work:
            del self._by_work[held.work]
        return held


def pack(batch: ScheduledBatch, held: Mapping[int, HeldRequest]) -> tuple[list[Buffer], dict[Part, list[Buffer]]]:
    """The token ids and the other parts of a batch in slices, not copied; zeros where a request lacks a part that
    another one has.
    """
    packed = [(held[slice_.request.request_id], slice_) for slice_ in batch.slices]
    token_ids = [one.ids_of(slice_) for one, slice_ in packed]
    if not any([one.submission.parts for one, _ in packed]):
        return token_ids, {}
    found = [(one.parts_of(slice_), slice_) for one, slice_ in packed]
    return token_ids, {
        part: [own.get(part) or bytes(size_of(part, each.stop - each.start, each.sent_tokens)) for own, each in found]
        for part in {part for own, _ in found for part in own}
    }


def cut_rows(rows: Rows, start: int, stop: int) -> Rows:
    """The rows of sequences [start, stop); the values are a view."""
    if rows.offsets is None:
        return Rows(rows.values[start:stop])
    first = rows.offsets[start]
    return Rows(rows.values[first : rows.offsets[stop]], rows.offsets[start : stop + 1] - first)
