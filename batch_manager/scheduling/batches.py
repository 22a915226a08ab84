"""Requests and batches as the scheduler sees them: lengths and places, no token ids, no rows.

Tokens are those that an engine computes, wherever it is not said that they are the sent ones. The two differ where a
sequence begins as the one before it does (`wire.parts.Part.SHARED`). What a slice shares with a sequence that is not in
it is computed again, so a slice has more tokens than it adds to its request (`Slice.own_tokens`): what waits is counted
by the latter, which stays right however a request is cut.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import NamedTuple

from engine.types import OutputKind
from wire.vocabulary import RequestClass


class ScheduledRequest:
    """The sequences of one request and how far they are.

    cu_seqlens      sequence i has cu_seqlens[i + 1] - cu_seqlens[i] tokens, as they are sent
    shared          tokens that each has in common with the one before, none for the first; () = all share none
    cu_tokens       the same sums as cu_seqlens, of what each has beyond `shared`
    max_seqlen      tokens of the longest
    key, weight     whose it is: keys that wait share the engines in proportion to their weights
    arrived         time.monotonic() seconds, set by the scheduler
    waiting_tokens  tokens that are in no engine and have no rows yet, by `Slice.own_tokens`
    num_left        sequences without rows
    is_open         whether rows are still wanted
    """

    __slots__ = (
        "arrived",
        "cu_seqlens",
        "cu_tokens",
        "deadline",
        "is_open",
        "key",
        "max_seqlen",
        "model",
        "num_left",
        "outputs",
        "request_class",
        "request_id",
        "shared",
        "waiting_tokens",
        "weight",
    )

    def __init__(
        self,
        request_id: int,
        seqlens: Sequence[int],
        *,
        shared: Sequence[int] = (),
        model: int,
        outputs: OutputKind,
        request_class: RequestClass,
        deadline: float,
        key: int = 0,
        weight: float = 1.0,
    ) -> None:
        if len(seqlens) == 1:  # by far the most requests
            self.max_seqlen = min_seqlen = seqlens[0]
            self.cu_seqlens: tuple[int, ...] = (0, min_seqlen)
        else:
            self.max_seqlen, min_seqlen = max(seqlens), min(seqlens)
            self.cu_seqlens = tuple(accumulate(seqlens, initial=0))
        assert min_seqlen > 0, "every sequence has tokens"
        self.shared, self.cu_tokens = shared, self.cu_seqlens
        if shared:
            own = [seqlens[0], *map(sub, seqlens[1:], shared[1:])]
            assert min(own) > 0, "no sequence shares all of its tokens"
            self.shared, self.cu_tokens = (0, *shared[1:]), tuple(accumulate(own, initial=0))
        self.request_id = request_id
        self.model = model
        self.outputs = outputs
        self.request_class = request_class
        self.deadline = deadline
        self.key = key
        self.weight = weight
        self.arrived = 0.0
        self.waiting_tokens = 0
        self.num_left = len(seqlens)
        self.is_open = True

    @property
    def num_seqs(self) -> int:
        """Sequences in the request."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all its sequences."""
        return self.cu_tokens[-1]

    def slice(self, start: int, stop: int) -> "Slice":
        """A slice of its sequences [start, stop)."""
        return Slice(self, start, stop, self.cu_tokens[stop] - self.cu_tokens[start] + self.shared_by(start))

    def shared_by(self, index: int) -> int:
        """The tokens that a sequence has in common with the one before."""
        return self.shared[index] if self.shared else 0


class Slice(NamedTuple):
    """Neighbouring sequences of one request."""

    request: ScheduledRequest
    start: int  # first sequence
    stop: int  # one past the last
    num_tokens: int

    @property
    def own_tokens(self) -> int:
        """Tokens without what its first sequence shares with the one before; all slices of a request have together what
        it has."""
        return self.num_tokens - self.request.shared_by(self.start)

    @property
    def sent_tokens(self) -> int:
        """Tokens as they are sent."""
        cu_seqlens = self.request.cu_seqlens
        return cu_seqlens[self.stop] - cu_seqlens[self.start]

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest sequence."""
        if self.stop - self.start == self.request.num_seqs:
            return self.request.max_seqlen
        return max(self.seqlens)

    @property
    def seqlens(self) -> list[int]:
        """Tokens of each sequence."""
        if self.stop - self.start == 1:
            return [self.num_tokens]
        cu_seqlens = self.request.cu_seqlens[self.start : self.stop + 1]
        return [stop - start for start, stop in pairwise(cu_seqlens)]


class Release(enum.StrEnum):
    """Why a batch is no larger than it is."""

    FULL = "full"  # the next sequence is over the budget, or the engine's number of sequences
    BUCKET = "bucket"  # the same, for a budget that was cut to an edge of the engine's
    CLASS = "class"  # the same, for a budget that is small because queries and bulk work share the engine
    SHARE = "share"  # the same, for a budget that leaves other idle streams their part
    DRAINED = "drained"  # nothing more waits
    KIND = "kind"  # what else waits can't go into the same batch
    RETRY = "retry"  # a part of a batch that failed, as it was cut
    ELSEWHERE = "elsewhere"  # as it was when it failed on another engine
    SUSPECT = "suspect"  # with few others or alone, after its engine died


class ScheduledBatch:
    """The work that one engine computes in one go; its sequences are not changed any more once it is dispatched.

    Without sequences it is a canary: the engine's own batch whose rows it knows (see `engine.selftest.warmup`).

    sent_tokens    tokens of its sequences as they are sent
    max_tokens     the budget it was packed under
    max_seqlen     tokens of its longest sequence
    release        why it is no larger; set as it is taken out of the backlog
    is_suspect     its sequences were being computed when an engine died, so it runs with nothing beside it
    is_beside      it was sent to compute beside other work, so its time may be counted from later than it began
    is_urgent      some of it is interactive
    gives_way      interactive work is about, so it should delay urgent batches as little as possible
    passed_tokens  of urgent batches that were sent to be computed before it, since it was the oldest that is not urgent
    failed_on      id of the engine on which this very batch has failed already; None = it has not
    began          time.monotonic() seconds at which a stream took it; inf before
    """

    __slots__ = (
        "batch_id",
        "began",
        "failed_on",
        "gives_way",
        "is_beside",
        "is_suspect",
        "is_urgent",
        "max_seqlen",
        "max_tokens",
        "num_seqs",
        "num_tokens",
        "passed_tokens",
        "release",
        "sent_tokens",
        "slices",
    )

    def __init__(self, slices: Iterable[Slice] = (), *, is_suspect: bool = False) -> None:
        self.batch_id = -1
        self.began = math.inf
        self.max_tokens = 0
        self.max_seqlen = 0
        self.is_suspect = is_suspect
        self.is_beside = False
        self.failed_on: int | None = None
        self.is_urgent = False
        self.gives_way = False
        self.passed_tokens = 0
        self.release = Release.SUSPECT if is_suspect else Release.DRAINED
        self.slices: list[Slice] = []
        self.num_tokens = 0
        self.sent_tokens = 0
        self.num_seqs = 0
        for slice_ in slices:
            self.add(slice_)

    @property
    def is_canary(self) -> bool:
        """Whether it has no sequence of any request."""
        return not self.slices

    @property
    def outputs(self) -> OutputKind:
        """The outputs that all its sequences are computed for."""
        return self.slices[0].request.outputs

    def elsewhere(self, slices: Iterable[Slice], *, failed_on: int) -> "ScheduledBatch":
        """A batch of what is still wanted of it, to be tried on another engine than this one."""
        batch = ScheduledBatch(slices)
        batch.max_tokens, batch.failed_on, batch.release = self.max_tokens, failed_on, Release.ELSEWHERE
        return batch

    def seqlens(self) -> list[int]:
        """Tokens of each sequence, in order."""
        if len(self.slices) == 1:
            return self.slices[0].seqlens
        seqlens: list[int] = []
        for slice_ in self.slices:
            seqlens += slice_.seqlens
        return seqlens

    def add(self, slice_: Slice) -> None:
        """Put a slice at the end, or right behind the sequences of its request that it shares tokens with: between the
        two, another key may have had its turn."""
        ahead = self._ahead(slice_) if slice_.start and slice_.request.shared else -1
        if ahead < 0:
            self.slices.append(slice_)
            self.num_tokens += slice_.num_tokens
        else:
            self.slices[ahead] = slice_.request.slice(self.slices[ahead].start, slice_.stop)
            self.num_tokens += slice_.own_tokens
        self.sent_tokens += slice_.sent_tokens
        self.num_seqs += slice_.stop - slice_.start
        self.max_seqlen = max(self.max_seqlen, slice_.max_seqlen)
        self.is_urgent |= slice_.request.request_class == RequestClass.INTERACTIVE

    def _ahead(self, slice_: Slice) -> int:
        """The place of the slice that ends where this one begins; -1 = there is none."""
        ends = ((one.request, one.stop) for one in self.slices)
        return next((at for at, end in enumerate(ends) if end == (slice_.request, slice_.start)), -1)


def parts(slices: Iterable[Slice], num_seqs: int) -> list[list[Slice]]:
    """All sequences in order, so many in each part; the last part may have fewer."""
    found: list[list[Slice]] = []
    room = 0
    for request, start, stop, _ in slices:
        while start < stop:
            if not room:
                found.append([])
                room = num_seqs
            cut = min(stop, start + room)
            found[-1].append(request.slice(start, cut))
            room -= cut - start
            start = cut
    return found


def by_class(slices: Sequence[Slice]) -> list[list[Slice]]:
    """The slices of each class, in order; a class that has none is left out."""
    classes = ([slice_ for slice_ in slices if slice_.request.request_class == one] for one in RequestClass)
    return [its_slices for its_slices in classes if its_slices]


def halves(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Two parts that hold all sequences in order: by class where there are two, else cut in the middle.

    A single sequence is one part.
    """
    classes = by_class(slices)
    if len(classes) > 1:
        return classes
    return parts(slices, (num_seqs(slices) + 1) // 2)


def num_seqs(slices: Iterable[Slice]) -> int:
    """Sequences of all of them."""
    return sum(slice_.stop - slice_.start for slice_ in slices)
