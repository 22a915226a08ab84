"""Waiting work of one model, output kind and class, in order; and the open requests of all, by their deadlines."""

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from batch_manager.batches import Batch, Request, Slice

_MIN_HEAP_SIZE = 1024


class Queue:
    """First come, first served, with two ways to the front: slices that come back from a lost engine, and
    batches that have to be tried again exactly as they are. Suspects wait beside all this, in a line of their own.

    A closed request's slices stay until they reach the head; its tokens leave the count at once.
    `num_tokens` is of everything, suspects too.
    """

    __slots__ = ("_retries", "_slices", "_suspects", "num_tokens")

    def __init__(self) -> None:
        self._slices: deque[Slice] = deque()
        self._retries: deque[Batch] = deque()
        self._suspects: deque[Batch] = deque()
        self.num_tokens = 0

    def push(self, request: Request) -> None:
        """All of a new request, at the back."""
        num_tokens = request.num_tokens
        self._slices.append(Slice(request, 0, request.num_seqs, num_tokens))
        request.waiting_tokens = num_tokens
        self.num_tokens += num_tokens

    def push_front(self, slices: Sequence[Slice]) -> None:
        """Slices that were in an engine, before everything else in their order."""
        self._slices.extendleft(reversed(slices))
        self._count(slices)

    def retry(self, batches: Sequence[Batch]) -> None:
        """Batches to be dispatched just so, in their order: suspects after the other suspects, others before all."""
        for batch in reversed(batches):
            if not batch.is_suspect:
                self._retries.appendleft(batch)
        self._suspects.extend(batch for batch in batches if batch.is_suspect)
        for batch in batches:
            self._count(batch.slices)

    def forget(self, request: Request) -> None:
        """Take a closed request out of the count."""
        self.num_tokens -= request.waiting_tokens
        request.waiting_tokens = 0

    @property
    def oldest(self) -> float:
        """When the request of the head arrived, suspects left aside; inf where nothing else waits."""
        self._drop_closed()
        oldest = self._slices[0].request.arrived if self._slices else math.inf
        if self._retries:
            retried = (piece.request for piece in self._retries[0].slices)
            oldest = min(oldest, *(request.arrived for request in retried if request.is_open))
        return oldest

    @property
    def oldest_suspect(self) -> float:
        """When the request of the next suspect arrived; inf where none waits."""
        self._drop_closed()
        return self._suspects[0].slices[0].request.arrived if self._suspects else math.inf

    @property
    def next_retry(self) -> Batch | None:
        """The batch that has to go before any other of this queue but suspects; it stays here."""
        self._drop_closed()
        return self._retries[0] if self._retries else None

    def take_retry(self) -> Batch:
        """Take out `next_retry`, without what was closed meanwhile."""
        return self._take_first(self._retries)

    def take_suspect(self) -> Batch:
        """Take out the next suspect, without what was closed meanwhile; there must be one."""
        self._drop_closed()
        return self._take_first(self._suspects)

    def _take_first(self, batches: deque[Batch]) -> Batch:
        first = batches.popleft()
        batch = Batch((piece for piece in first.slices if piece.request.is_open), is_suspect=first.is_suspect)
        for piece in batch.slices:
            self._discount(piece)
        return batch

    @property
    def was_cut(self) -> bool:
        """Whether the last `take` left something for want of room."""
        return bool(self._slices)

    def take(self, batch: Batch, max_tokens: int, *, max_seqs: int) -> None:
        """Move whole sequences into the batch, in order, until the next one would break a limit of the batch.

        An empty batch gets at least one sequence, however long.
        """
        slices = self._slices
        while slices:
            piece = slices[0]
            if not piece.request.is_open:
                slices.popleft()
                continue
            room_tokens, room_seqs = max_tokens - batch.num_tokens, max_seqs - batch.num_seqs
            if piece.num_tokens <= room_tokens and piece.stop - piece.start <= room_seqs:
                slices.popleft()
            else:
                stop = _last_that_fits(piece, room_tokens, room_seqs)
                if stop <= piece.start and batch.slices:
                    return
                piece = self._split_head(max(stop, piece.start + 1))
            batch.add(piece)
            self._discount(piece)

    def _split_head(self, cut: int) -> Slice:
        request, start, stop, _ = self._slices.popleft()
        if cut < stop:
            self._slices.appendleft(request.slice(cut, stop))
        return request.slice(start, cut)

    def _drop_closed(self) -> None:
        while self._slices and not self._slices[0].request.is_open:
            self._slices.popleft()
        for batches in (self._retries, self._suspects):
            while batches and not any(piece.request.is_open for piece in batches[0].slices):
                batches.popleft()

    def _count(self, slices: Sequence[Slice]) -> None:
        for piece in slices:
            piece.request.waiting_tokens += piece.num_tokens
            self.num_tokens += piece.num_tokens

    def _discount(self, piece: Slice) -> None:
        piece.request.waiting_tokens -= piece.num_tokens
        self.num_tokens -= piece.num_tokens


def _last_that_fits(piece: Slice, room_tokens: int, room_seqs: int) -> int:
    """One past the last sequence of the slice that fits; its start or less where none does."""
    cu_seqlens = piece.request.cu_seqlens
    last = min(piece.stop, piece.start + room_seqs)
    return bisect_right(cu_seqlens, cu_seqlens[piece.start] + room_tokens, piece.start, last + 1) - 1


class Deadlines:
    """Deadlines of requests, soonest first. Closed requests are not removed at once but swept now and then,
    so that the heap holds at most about twice as many as are open."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._sweep_at = _MIN_HEAP_SIZE

    def add(self, request: Request) -> None:
        """Watch a request that has a deadline."""
        heapq.heappush(self._heap, (request.deadline, request.request_id, request))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].is_open]
            heapq.heapify(self._heap)
            self._sweep_at = max(_MIN_HEAP_SIZE, 2 * len(self._heap))

    @property
    def next(self) -> float:
        """The soonest deadline of an open request; inf where there is none."""
        heap = self._heap
        while heap and not heap[0][2].is_open:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def take_due(self, now: float) -> list[Request]:
        """Open requests whose deadline has come; they are no longer watched."""
        due = []
        while self.next <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
