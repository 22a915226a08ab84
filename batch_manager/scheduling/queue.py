"""All that waits for the engines of one model (`Backlog`), and what of it goes into the next batch. A `Queue` is of one
output kind and class: keys by fair shares, and each key's requests as they came.

The two classes share a model by weighted deficit round robin. While both wait, bulk is owed
`bulk_share` of a batch with every batch. It is served what it is owed inside the batches that
interactive work leads, where it has the same output kind and fits; what it could not get there adds
up, and once a whole batch is owed, bulk leads one. So bulk waits for a bounded number of batches
however much interactive work comes, and interactive work never waits for two batches that bulk
leads in a row unless the last of them was a single sequence longer than a batch.

Room that one class leaves is lent to the other and never asked back.

For example, bulk_share is 0.3, a batch takes 1,000 tokens, and much of both classes waits in sequences of 10 tokens.
Bulk is owed 0.3 of a batch, so 300 tokens are reserved; interactive work takes 700, bulk 300, and is charged the 0.3
it was owed: it is owed nothing and the next batch is the same. If bulk waits in sequences of 800, none fits into
300: interactive work takes these too, and bulk is charged nothing. In the next batches it is owed 0.6, then 0.9; now
900 are reserved, 800 are used and charged, interactive work takes the other 200, and 0.1 stays owed. A sequence of
1,000 does not fit into 900 either: bulk is then owed 1.2, which makes it the leader; the leader is charged a whole
batch at least, so 0.2 stays owed. Had it had 2,000 tokens, it would be charged two batches, and bulk wait the longer.
If only 100 tokens of interactive work wait beside small bulk sequences, bulk fills the other 900; it is charged the
300 that were reserved, and the 600 are lent.

Engines that put urgent batches first (`EngineLimits`) get batches of each class independently of the other, so here
nothing is owed; what bulk gets of such an engine is up to `ReadyEngine.owes_bulk`.

Inside a class, API keys share what it gets (see `Shares`).

Suspects (see `scheduler`) wait in the place of their class: it is their class's turn when they are computed, and while
other work of their class waits too, the two take turns, so a thousand suspects hold nobody up for more than a batch
each, and do not wait without end themselves.
"""

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from batch_manager.scheduling.batches import Release, ScheduledBatch, ScheduledRequest, Slice, halves
from batch_manager.scheduling.engines import Budget, fits
from engine.types import OutputKind
from wire.vocabulary import NUM_CLASSES, RequestClass

_INTERACTIVE, _BULK = RequestClass.INTERACTIVE, RequestClass.BULK
_MIN_SIZE = 1024  # requests that Arrivals holds before it is swept

# Keys take turns of about so many tokens: within a batch their order does not matter, and small turns would cut
# requests into more slices than needed.
_TURN_TOKENS = 256

# The part of a sequence that is shared with the one before, from which on it follows that one in a group
# (`EngineLimits.group_tokens`). Documents of 300 tokens behind a template and a query of 75 share a fifth. With less
# than an eighth, a longer batch gains hardly anything.
_LEAST_IN_GROUP = 1 / 8


class Shares:
    """The share that each API key of one class has had, and so which of those that wait comes next.

    This is start-time fair queueing. Each key has a count of the tokens that it has had, divided by its weight, and
    the key with the lowest count comes next. So keys that always have work get tokens in proportion to their weights,
    however large their requests are, and what a key leaves goes to the others. A key that comes back after a pause
    starts at the count of whoever was served last: nobody saves up a claim, and nobody has to pay back what was lent.

    Deficit round robin gives the same shares. It was not taken because it needs a quantum as large as the longest
    sequence or many empty turns, and a key that has just come would wait for one quantum of every other key.

    All output kinds of a class share it.     num_waiting  of the keys, each counted in every queue; to be read only
    """

    __slots__ = ("_had", "_num_queues", "_served", "num_waiting")

    def __init__(self) -> None:
        self._had: dict[int, float] = {}  # by key: tokens over weight
        self._num_queues: dict[int, int] = {}  # by key: queues in which it waits
        self._served = 0.0  # the highest count at which a key got a turn
        self.num_waiting = 0

    def had(self, key: int) -> float:
        """Tokens over weight. It only grows."""
        return self._had[key]

    def enter(self, key: int) -> None:
        """The key begins to wait in a queue."""
        num_queues = self._num_queues.get(key, 0)
        if not num_queues:
            self._had[key] = max(self._had.get(key, 0.0), self._served)
        self._num_queues[key] = num_queues + 1
        self.num_waiting += 1

    def leave(self, key: int) -> None:
        """Nothing of the key waits in a queue any more."""
        self._num_queues[key] -= 1
        self.num_waiting -= 1

    def charge(self, key: int, num_tokens: int, *, weight: float) -> None:
        """A waiting key got its turn."""
        had = self._had[key]
        self._served = max(self._served, had)
        self._had[key] = had + num_tokens / weight

    def serve_alone(self, key: int, num_tokens: int, *, weight: float) -> None:
        """The key came and got its turn while no other waited: as `enter`, `charge` and `leave`."""
        self._served = max(self._served, self._had.get(key, 0.0))
        self._had[key] = self._served + num_tokens / weight


class Arrivals:
    """Requests in the order in which they came.

    What does not wait any more is passed over, and swept now and then, so at most about twice as many requests are here
    as wait.
    """

    __slots__ = ("_requests", "_sweep_at")

    def __init__(self) -> None:
        self._requests: deque[ScheduledRequest] = deque()
        self._sweep_at = _MIN_SIZE

    def add(self, request: ScheduledRequest) -> None:
        """The newest request; it waits."""
        self._requests.append(request)
        if len(self._requests) > self._sweep_at:
            self._requests = deque(one for one in self._requests if one.waiting_tokens)
            self._sweep_at = max(_MIN_SIZE, 2 * len(self._requests))

    @property
    def oldest(self) -> float:
        """When the oldest came of those that still wait; inf where none does."""
        requests = self._requests
        while requests and not requests[0].waiting_tokens:
            requests.popleft()
        return requests[0].arrived if requests else math.inf


class _Line:
    """New work of one key, in the order in which it came."""

    __slots__ = ("has_turns", "key", "slices")

    def __init__(self, key: int) -> None:
        self.key = key
        self.slices: deque[Slice] = deque()
        self.has_turns = False  # whether the key is one of those that take turns


class _TurnBudget(NamedTuple):
    """The room that a turn has left in a batch."""

    max_tokens: int  # of the whole batch, unless it ends in a group
    budget: Budget  # of the whole batch: how large it may be at all
    turn_tokens: float = math.inf  # of this turn, but a single sequence may have more, and so may a group


class Queue:
    """Keys take turns (`Shares`), and within a key it is first come, first served; with two ways to the front: slices
    that come back from a lost engine, and batches that have to be tried again exactly as they are. Suspects wait beside
    all this, in a line of their own.

    A closed request's slices stay until they reach the head of their line; its tokens leave the count at once.
    `num_tokens` is of everything, suspects too; `class_tokens` holds the same of all queues of the class.
    """

    __slots__ = (
        "_arrivals",
        "_class",
        "_class_tokens",
        "_lines",
        "_retries",
        "_returned",
        "_shares",
        "_suspects",
        "_turns",
        "num_tokens",
    )

    def __init__(self, shares: Shares, class_tokens: list[int], request_class: RequestClass) -> None:
        self._shares = shares
        self._class_tokens = class_tokens
        self._class = int(request_class)
        self._arrivals = Arrivals()
        self._lines: dict[int, _Line] = {}  # by key; each stays, as there are only so many keys
        # A heap of the keys that take turns, by what each had when it was put there. That only grows, so an entry that
        # is out of date lies too high, never too low, and is put right when it is looked at.
        self._turns: list[tuple[float, int]] = []
        self._returned: deque[Slice] = deque()
        self._retries: deque[ScheduledBatch] = deque()
        self._suspects: deque[ScheduledBatch] = deque()
        self.num_tokens = 0

    def push(self, request: ScheduledRequest) -> None:
        """Put in all of a new request, behind the others of its key."""
        line = self._lines.get(request.key)
        if line is None:
            line = self._lines[request.key] = _Line(request.key)
        if not line.has_turns:
            line.has_turns = True
            self._shares.enter(request.key)
            heapq.heappush(self._turns, (self._shares.had(request.key), request.key))
        num_tokens = request.num_tokens
        line.slices.append(request.slice(0, request.num_seqs))
        request.waiting_tokens = num_tokens
        self._add(num_tokens)
        self._arrivals.add(request)

    def push_front(self, slices: Sequence[Slice]) -> None:
        """Slices that were in an engine, before everything else in their order."""
        self._returned.extendleft(reversed(slices))
        self._count(slices)

    def retry(self, batches: Sequence[ScheduledBatch]) -> None:
        """Batches to be dispatched just so, in their order: suspects after the other suspects, others before all."""
        for batch in reversed(batches):
            if not batch.is_suspect:
                self._retries.appendleft(batch)
        self._suspects.extend(batch for batch in batches if batch.is_suspect)
        for batch in batches:
            self._count(batch.slices)

    def forget(self, request: ScheduledRequest) -> None:
        """Take a closed request out of the count."""
        self._add(-request.waiting_tokens)
        request.waiting_tokens = 0

    @property
    def oldest(self) -> float:
        """When the oldest request came of which something waits; inf where nothing does."""
        return min(self._arrivals.oldest, self._oldest_back, self.oldest_suspect)

    @property
    def has_others(self) -> bool:
        """Whether anything but suspects waits."""
        self._drop_closed()
        return bool(self._returned or self._retries) or self._next_line() is not None

    @property
    def turn(self) -> tuple[float, float]:
        """The queue of a class with the lowest comes next: what its next key has had, and when that key's next request
        arrived. What comes back from engines goes before all of it."""
        back = self._oldest_back
        if back < math.inf:
            return -math.inf, back
        line = self._next_line()
        return (math.inf, math.inf) if line is None else (self._shares.had(line.key), line.slices[0].request.arrived)

    @property
    def _oldest_back(self) -> float:
        """When the next request of each kind arrived that came back from an engine, suspects left aside."""
        self._drop_closed()
        back = self._returned[0].request.arrived if self._returned else math.inf
        if self._retries:
            back = min(back, *(slice_.request.arrived for slice_ in self._retries[0].slices if slice_.request.is_open))
        return back

    @property
    def has_suspects(self) -> bool:
        """Whether any wait."""
        return bool(self._suspects) and self.oldest_suspect < math.inf

    @property
    def oldest_suspect(self) -> float:
        """When the request of the next suspect arrived; inf where none waits."""
        self._drop_closed()
        return self._suspects[0].slices[0].request.arrived if self._suspects else math.inf

    @property
    def next_retry(self) -> ScheduledBatch | None:
        """The batch that has to go before any other of this queue but suspects; it stays here."""
        self._drop_closed()
        return self._retries[0] if self._retries else None

    def take_retry(self) -> ScheduledBatch:
        """Take out `next_retry`, without what was closed meanwhile."""
        return self._take_first(self._retries)

    def take_suspect(self) -> ScheduledBatch:
        """Take out the next suspect, without what was closed meanwhile; there must be one."""
        self._drop_closed()
        return self._take_first(self._suspects)

    def _take_first(self, batches: deque[ScheduledBatch]) -> ScheduledBatch:
        first = batches.popleft()
        wanted = (slice_ for slice_ in first.slices if slice_.request.is_open)
        batch = ScheduledBatch(wanted, is_suspect=first.is_suspect)
        for slice_ in batch.slices:
            self._discount(slice_)
        return batch

    @property
    def was_cut(self) -> bool:
        """Whether the last `take` left something for want of room."""
        return bool(self._returned or self._turns)

    def take(self, batch: ScheduledBatch, max_tokens: int, budget: Budget) -> None:
        """Move whole sequences into the batch, in order, until the next one would break a limit of the batch.

        An empty batch gets at least one sequence, however long. The last one is followed by those of its group.
        """
        room = _TurnBudget(max_tokens, budget)
        if self._returned:
            self._move(self._returned, batch, room)
            if self._returned:
                return
        while (line := self._next_line()) is not None:
            weight = line.slices[0].request.weight
            turn = room if len(self._turns) == 1 else room._replace(turn_tokens=_TURN_TOKENS * weight)
            taken = self._move(line.slices, batch, turn)
            if not taken:
                return
            self._shares.charge(line.key, taken, weight=weight)

    def _next_line(self) -> _Line | None:
        """The line whose turn it is, with an open request at its head; None where no new work waits."""
        turns = self._turns
        while turns:
            had, key = turns[0]
            if had < self._shares.had(key):
                heapq.heapreplace(turns, (self._shares.had(key), key))
                continue
            line = self._lines[key]
            if _arrival(line.slices) < math.inf:
                return line
            heapq.heappop(turns)
            line.has_turns = False
            self._shares.leave(key)
        return None

    def _move(self, slices: deque[Slice], batch: ScheduledBatch, room: _TurnBudget) -> int:
        """Move sequences into the batch until the room is used up; how many tokens they have. The first one of a turn
        only has to fit into the batch, and the first one of a batch does not even have to."""
        taken = 0
        while slices:
            slice_ = slices[0]
            if not slice_.request.is_open:
                slices.popleft()
                continue
            most = min(room.max_tokens - batch.num_tokens, room.turn_tokens - taken)
            limit = room.budget.last_allowed(slice_, batch)
            if slice_.num_tokens <= most and slice_.stop <= limit:
                slices.popleft()
            else:
                stop = min(_last_that_fits(slice_, most), limit)
                if stop <= slice_.start:
                    first = slice_.request.slice(slice_.start, slice_.start + 1)
                    has_room = limit > slice_.start and first.num_tokens <= room.max_tokens - batch.num_tokens
                    if taken or (batch.slices and not has_room):
                        break
                    stop = first.stop
                stop = _end_of_group(slice_, stop, limit, room.budget.group_tokens - batch.num_tokens)
                slice_ = _split_head(slices, stop)
            batch.add(slice_)
            self._discount(slice_)
            taken += slice_.num_tokens
        return taken

    def _drop_closed(self) -> None:
        while self._returned and not self._returned[0].request.is_open:
            self._returned.popleft()
        for batches in (self._retries, self._suspects):
            while batches and not any(slice_.request.is_open for slice_ in batches[0].slices):
                batches.popleft()

    def _count(self, slices: Sequence[Slice]) -> None:
        for slice_ in slices:
            slice_.request.waiting_tokens += slice_.own_tokens
            self._add(slice_.own_tokens)

    def _discount(self, slice_: Slice) -> None:
        slice_.request.waiting_tokens -= slice_.own_tokens
        self._add(-slice_.own_tokens)

    def _add(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self._class_tokens[self._class] += num_tokens


def _arrival(slices: deque[Slice]) -> float:
    """When the request at the head arrived, closed ones dropped; inf where there is none."""
    while slices and not slices[0].request.is_open:
        slices.popleft()
    return slices[0].request.arrived if slices else math.inf


def _split_head(slices: deque[Slice], cut: int) -> Slice:
    request, start, stop, _ = slices.popleft()
    if cut < stop:
        slices.appendleft(request.slice(cut, stop))
    return request.slice(start, cut)


def _last_that_fits(slice_: Slice, room_tokens: float) -> int:
    """One past the last sequence of the slice that fits; its start or less where none does."""
    cu_tokens, start = slice_.request.cu_tokens, slice_.start
    room = room_tokens - slice_.request.shared_by(start)  # which is computed once more
    return bisect_right(cu_tokens, cu_tokens[start] + room, start, slice_.stop + 1) - 1


def _end_of_group(slice_: Slice, stop: int, limit: int, room_tokens: int) -> int:
    """One past the last of the sequences from `stop` on that share so much with the one before that they follow it.

    In the next batch, what they share would be computed again.
    """
    request = slice_.request
    if not request.shared:
        return stop
    limit, cu_seqlens = min(limit, _last_that_fits(slice_, room_tokens)), request.cu_seqlens
    while stop < limit and request.shared[stop] >= _LEAST_IN_GROUP * (cu_seqlens[stop + 1] - cu_seqlens[stop]):
        stop += 1
    return stop


class Backlog:
    """Waiting work of one model by output kind and class.     num_tokens  of each class that wait; to be read only

    A query of one sequence that finds nothing waiting is in no queue at first. Mostly it is still alone when its batch
    is formed, and then needs none (`take_alone`); all else that looks into the queues puts it there before.
    """

    def __init__(self, bulk_share: float) -> None:
        self._bulk_share = bulk_share
        self._owed = 0.0  # to bulk, in batches
        self._suspect_was_last = [False] * NUM_CLASSES  # whether what was last computed of a class was a suspect
        self._shares = (Shares(), Shares())  # by class
        self.num_tokens = [0] * NUM_CLASSES
        self._queues: dict[OutputKind, tuple[Queue, Queue]] = {}
        self._alone: ScheduledRequest | None = None

    def push(self, request: ScheduledRequest) -> None:
        """A new request waits."""
        if any(self.num_tokens) or request.num_left > 1 or request.request_class is not _INTERACTIVE:
            self.queue(request).push(request)
        else:
            self._alone = request
            request.waiting_tokens = self.num_tokens[_INTERACTIVE] = request.max_seqlen

    def take_alone(self, max_tokens: int) -> ScheduledBatch | None:
        """Take out the query that waits alone, as the batch of so many tokens at most that would be made of it for any
        idle engine; None where none does, or a queue still has a key whose query was given up."""
        request, shares = self._alone, self._shares[_INTERACTIVE]
        if request is None or request.max_seqlen >= max_tokens or shares.num_waiting:
            return None
        self._alone = None
        shares.serve_alone(request.key, request.max_seqlen, weight=request.weight)
        request.waiting_tokens = self.num_tokens[_INTERACTIVE] = 0
        self._suspect_was_last[_INTERACTIVE], self._owed = False, 0.0
        batch = ScheduledBatch((Slice(request, 0, 1, request.max_seqlen),))
        batch.max_tokens = max_tokens
        return batch

    def queue(self, request: ScheduledRequest) -> Queue:
        """The queue in which this request waits."""
        self._settle()
        return self._queue(request)

    def _settle(self) -> None:
        """Put the query that waits alone into its queue."""
        alone, self._alone = self._alone, None
        if alone is not None:
            self.num_tokens[_INTERACTIVE] = 0
            self._queue(alone).push(alone)

    def _queue(self, request: ScheduledRequest) -> Queue:
        queues = self._queues.get(request.outputs)
        if queues is None:
            interactive, bulk = (Queue(self._shares[kind], self.num_tokens, kind) for kind in (_INTERACTIVE, _BULK))
            queues = self._queues[request.outputs] = (interactive, bulk)
        return queues[request.request_class]

    def oldest(self, request_class: RequestClass) -> float:
        """When the oldest waiting request of one class arrived; inf where none waits."""
        if not self.num_tokens[request_class]:
            return math.inf
        self._settle()
        return min(queues[request_class].oldest for queues in self._queues.values())

    @property
    def has_suspects(self) -> bool:
        """Whether any wait."""
        if self._alone is not None or not any(self.num_tokens):
            return False
        for interactive, bulk in self._queues.values():  # noqa: SIM110 - asked several times for every batch
            if interactive.has_suspects or bulk.has_suspects:
                return True
        return False

    def next_batch_of(self, request_class: RequestClass, budget: Budget) -> ScheduledBatch:
        """Take out the next batch for which this class counts alone. Some of it must wait, and no suspects."""
        self._settle()
        batch, _ = self._take(request_class, budget=budget, owed=0.0)
        self._suspect_was_last[request_class] = False
        return batch

    def next_batch(self, budget: Budget, *, may_be_suspect: bool) -> ScheduledBatch | None:
        """Take out the next batch. Something must wait. None where it is a suspect's turn and that may not be."""
        self._settle()
        interactive_waits = self.num_tokens[_INTERACTIVE] > 0
        is_shared = interactive_waits and self.num_tokens[_BULK] > 0
        owed = self._owed + self._bulk_share if is_shared else 0.0
        leader = _INTERACTIVE if interactive_waits and owed < 1 else _BULK
        if not self._is_suspects_turn(leader):
            batch, charge = self._take(leader, budget=budget, owed=owed)
        elif may_be_suspect:
            batch, charge = self._take_suspect(leader, budget), float(leader == _BULK)
        else:
            return None
        self._suspect_was_last[leader] = batch.is_suspect
        self._owed = owed - charge if is_shared else 0.0
        return batch

    def _is_suspects_turn(self, request_class: RequestClass) -> bool:
        if not self.has_suspects:
            return False
        queues = [queues[request_class] for queues in self._queues.values()]
        if not any(queue.has_suspects for queue in queues):
            return False
        return not self._suspect_was_last[request_class] or not any(queue.has_others for queue in queues)

    def _take_suspect(self, request_class: RequestClass, budget: Budget) -> ScheduledBatch:
        queue = min((queues[request_class] for queues in self._queues.values()), key=lambda queue: queue.oldest_suspect)
        batch = queue.take_suspect()
        while batch.num_seqs > 1 and not fits(budget.limits, batch):  # it was in a larger engine
            queue.retry([ScheduledBatch(part, is_suspect=True) for part in halves(batch.slices)])
            batch = queue.take_suspect()
        batch.max_tokens = budget.max_tokens
        return batch

    def _take(self, leader: RequestClass, *, budget: Budget, owed: float) -> tuple[ScheduledBatch, float]:
        """The next batch that is no suspect, and what of a batch bulk was served of what it was owed."""
        queues = self._turn(leader)
        retry = queues[leader].next_retry
        if retry is None:
            return self._pack(queues, leader, budget=budget, owed=owed)
        batch = queues[leader].take_retry()
        if not fits(budget.limits, batch):
            queues[leader].push_front(batch.slices)
            return self._pack(queues, leader, budget=budget, owed=owed)
        batch.max_tokens, batch.release = budget.max_tokens, Release.RETRY
        return batch, float(leader == _BULK)

    def _turn(self, request_class: RequestClass) -> tuple[Queue, Queue]:
        """The queues of the output kind that comes next in this class, suspects left aside: that of the key whose turn
        it is, and of several such the one that it has waited longest for; of kinds that came at one moment always the
        same, whichever was asked for before."""
        kinds = list(self._queues.items())
        if len(kinds) == 1:
            return kinds[0][1]
        return min(kinds, key=lambda kind: (kind[1][request_class].turn, kind[0]))[1]

    def _pack(
        self, queues: tuple[Queue, Queue], leader: RequestClass, *, budget: Budget, owed: float
    ) -> tuple[ScheduledBatch, float]:
        """A batch of new work; `_take` says what is returned, and the top of this file has an example.

        reserved  tokens of the batch that are kept for bulk because it is owed them, where it can use them
        charge    in batches; what bulk got beyond what was reserved is lent
        """
        other_class = _INTERACTIVE if leader == _BULK else _BULK
        leading, other = queues[leader], queues[other_class]
        waiting_tokens = leading.num_tokens + min(other.num_tokens, budget.max_joined)
        max_tokens = budget.sealed(waiting_tokens)
        batch = ScheduledBatch()
        batch.max_tokens = max_tokens
        reserved = 0
        # what of the other class has to be computed by itself first is not passed by what came after it
        is_joined = other.num_tokens and other.next_retry is None and not self._is_suspects_turn(other_class)
        if is_joined and leader == _INTERACTIVE and owed > 0 and self._turn(_BULK) is queues:
            reserved = int(owed * max_tokens)
        leading.take(batch, max_tokens - reserved, budget)
        led_tokens = batch.num_tokens
        if is_joined:
            other.take(batch, min(budget.max_joined, max_tokens), budget)
        other_tokens = batch.num_tokens - led_tokens
        if other_tokens:
            self._suspect_was_last[other_class] = False
        if reserved:
            leading.take(batch, max_tokens, budget)
        if leading.was_cut or (is_joined and other.was_cut and budget.max_joined >= max_tokens):
            batch.release = Release.FULL if max_tokens == budget.max_tokens else Release.BUCKET
        elif self.num_tokens[_INTERACTIVE] or self.num_tokens[_BULK]:
            batch.release = Release.KIND
        if leader == _BULK:
            return batch, max(1.0, led_tokens / max_tokens)
        return batch, min(other_tokens, reserved) / max_tokens
