"""One model: its waiting work and its deadlines, its engines, and which batch goes to which engine next.

The functions tell from the measured rate when the engines will be done with what they hold, and what waits but would be
late even in the next batch: a batch takes its tokens over the rate of a stream, from the moment a stream took it.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

from batch_manager.messages import Policy
from batch_manager.scheduling.batches import Release, ScheduledBatch, ScheduledRequest, Slice
from batch_manager.scheduling.engines import Lane, Rate, ReadyEngine, Sizes, claims, in_lane, split_evenly, with_room
from batch_manager.scheduling.queue import Backlog, Queue
from engine.types import EngineLimits
from wire.vocabulary import NUM_CLASSES, RequestClass

_MIN_HEAP_SIZE = 1024  # deadlines that are held before they are swept
_Entry = tuple[float, int, ScheduledRequest]
_LANES: Sequence[Lane] = tuple(RequestClass)
_ONE_LANE: Sequence[Lane] = (None,)


class Deadlines:
    """Deadlines of waiting requests, soonest first.

    What does not wait any more, or has a later deadline by now, is passed over, and swept now and then, so the heap
    holds at most about twice as many entries as wait. Whoever puts a request back into a queue, or sets it a later
    deadline, adds it again; twice does no harm.
    """

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self.may_be_some = False  # whether a request is watched, or was and is not passed over yet
        self._count = itertools.count()  # so that requests themselves are never compared
        self._sweep_at = _MIN_HEAP_SIZE

    def add(self, request: ScheduledRequest) -> None:
        """Watch a waiting request, if it has a deadline."""
        if request.deadline == math.inf:
            return
        heapq.heappush(self._heap, (request.deadline, next(self._count), request))
        self.may_be_some = True
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if _counts(entry)]
            heapq.heapify(self._heap)
            self._sweep_at = max(_MIN_HEAP_SIZE, 2 * len(self._heap))

    @property
    def next(self) -> float:
        """The soonest deadline of a waiting request; inf where there is none."""
        heap = self._heap
        while heap and not _counts(heap[0]):
            heapq.heappop(heap)
        self.may_be_some = bool(heap)
        return heap[0][0] if heap else math.inf

    def take_due(self, until: float) -> list[ScheduledRequest]:
        """Waiting requests whose deadline is no later than that; they are no longer watched."""
        due = {}  # by id, as one may be there twice
        while self.next <= until:
            request = heapq.heappop(self._heap)[2]
            due[request.request_id] = request
        return list(due.values())


def _counts(entry: _Entry) -> bool:
    """Whether the request waits, and until then."""
    deadline, _, request = entry
    return bool(request.waiting_tokens) and deadline == request.deadline


class Model:
    """Everything the scheduler keeps for one model.

    queued_tokens  by class: waiting and in engines
    deadlines      by class: of what waits
    gives_up_at    time.monotonic() seconds after which work is refused for want of an engine; inf while there is one
    num_streams    of all ready engines, or of those that were there last
    last_batch_at  time.monotonic() seconds of the last finished batch, 0 = none yet
    """

    def __init__(self, policy: Policy, *, now: float) -> None:
        self._policy = policy
        self.backlog = Backlog(policy.bulk_share)
        self.rate = Rate()
        self._sizes = Sizes(policy, self.rate)
        self.engines: list[ReadyEngine] = []
        self.max_seqlen: float = math.inf  # tokens of one sequence; not known before the first engine is
        self.queued_tokens = [0] * NUM_CLASSES
        self.deadlines = [Deadlines() for _ in range(NUM_CLASSES)]
        self.gives_up_at = now + policy.engine_restart_grace
        self.last_batch_at = 0.0
        self.last_interactive_at = -math.inf
        self.num_streams = 0
        self._num_retries = 0  # batches that wait for one engine alone
        self._batch_seconds = 0.0
        self._batch_seconds_of: tuple[object, ...] = ()  # what these were made of
        self._have_lanes = False  # whether all ready engines put urgent batches first

    @property
    def tokens_per_second(self) -> float:
        """The tokens that all streams of all ready engines compute together, each at `rate`; 0 where that is not known.

        While no engine is there, what the last ones did: they will be back, and then what waits goes as fast.
        """
        return self.rate.tokens_per_second * self.num_streams

    @property
    def waits(self) -> bool:
        """Whether anything waits for an engine."""
        return any(self.backlog.num_tokens)

    def add(self, request: ScheduledRequest) -> None:
        """A new request waits."""
        self.backlog.push(request)
        self.deadlines[request.request_class].add(request)
        self.queued_tokens[request.request_class] += request.waiting_tokens
        if request.request_class == RequestClass.INTERACTIVE:
            self.last_interactive_at = request.arrived

    def forget(self, request: ScheduledRequest) -> None:
        """A request is closed; what of it waits is not wanted any more."""
        if request.waiting_tokens:
            self.queued_tokens[request.request_class] -= request.waiting_tokens
            self.backlog.queue(request).forget(request)

    def add_engine(self, engine: ReadyEngine) -> None:
        """An engine is ready."""
        self.engines.append(engine)
        self.rate.seed(engine.limits.tokens_per_second, engine.limits.fixed_batch_seconds)
        self.gives_up_at = math.inf
        self._note_limits()

    def remove_engine(self, engine: ReadyEngine, *, now: float) -> None:
        """An engine is gone."""
        self.engines.remove(engine)
        self._num_retries -= len(engine.retries)
        self._note_limits()
        if not self.engines:
            self.gives_up_at = now + self._policy.engine_restart_grace

    def _note_limits(self) -> None:
        """Note what the last engine could take: the best guess while no engine is there."""
        if self.engines:
            self.num_streams = sum(engine.limits.streams for engine in self.engines)
        self._have_lanes = all(engine.limits.puts_urgent_first for engine in self.engines)
        self.max_seqlen = min((engine.limits.max_seqlen for engine in self.engines), default=self.max_seqlen)

    def first_too_long(self, request: ScheduledRequest) -> int:
        """Find a sequence of the request that no engine of this model can take."""
        lengths = (stop - start for start, stop in pairwise(request.cu_seqlens))
        return next(index for index, length in enumerate(lengths) if length > self.max_seqlen)

    def note_done(self, batch: ScheduledBatch, compute_seconds: float, *, limits: EngineLimits, now: float) -> None:
        """A batch has its rows."""
        self.last_batch_at = now
        num_tokens = batch.num_tokens + (batch.passed_tokens if limits.overlaps else 0)  # computed in the same time
        self.rate.observe(num_tokens, compute_seconds, max_tokens=batch.max_tokens, is_beside=batch.is_beside)
        self._count(batch.slices, -1)

    def reclaim(self, batches: Iterable[ScheduledBatch]) -> list[Slice]:
        """The slices still wanted of batches that gave no rows: to be refused, or put back by `requeue` or `retry`."""
        slices = [slice_ for batch in batches for slice_ in batch.slices]
        self._count(slices, -1)
        return [slice_ for slice_ in slices if slice_.request.is_open]

    def requeue(self, slices: Sequence[Slice]) -> None:
        """Slices wait again, in their order before everything else of their kind."""
        self._count(slices, 1)
        by_queue: dict[Queue, list[Slice]] = {}
        for slice_ in slices:
            by_queue.setdefault(self.backlog.queue(slice_.request), []).append(slice_)
        for queue, its_slices in by_queue.items():
            queue.push_front(its_slices)
        self._watch(slices)

    def retry(self, batches: Sequence[ScheduledBatch]) -> None:
        """Batches, each of one class, have to be dispatched just so, before everything else of their kind."""
        by_queue: dict[Queue, list[ScheduledBatch]] = {}
        for batch in batches:
            self._count(batch.slices, 1)
            by_queue.setdefault(self.backlog.queue(batch.slices[0].request), []).append(batch)
        for queue, its_batches in by_queue.items():
            queue.retry(its_batches)
        self._watch(slice_ for batch in batches for slice_ in batch.slices)

    def _watch(self, slices: Iterable[Slice]) -> None:
        """The deadlines of what waits again."""
        for request in {slice_.request.request_id: slice_.request for slice_ in slices}.values():
            self.deadlines[request.request_class].add(request)

    @property
    def has_timer(self) -> bool:
        """Whether `next_timer` may be less than inf."""
        interactive, bulk = self.deadlines
        return interactive.may_be_some or bulk.may_be_some or self.gives_up_at < math.inf or self._num_retries > 0

    @property
    def next_timer(self) -> float:
        """The soonest deadline of what waits, also of what waits for one engine alone, or when all is given up that
        waits for an engine; inf where there is none."""
        soonest = min([deadlines.next for deadlines in self.deadlines])
        if self.gives_up_at < soonest and self.waits:
            soonest = self.gives_up_at
        for engine in self.engines:
            for batch in engine.retries:
                requests = (slice_.request for slice_ in batch.slices)
                soonest = min([soonest, *(request.deadline for request in requests if request.is_open)])
        return soonest

    def pass_on(self, batch: ScheduledBatch, engine: ReadyEngine) -> None:
        """A batch that failed on another engine waits for this one, before everything else that it could get."""
        self._count(batch.slices, 1)
        engine.retries.append(batch)
        self._num_retries += 1

    def _take_retry(self, engine: ReadyEngine, lane: Lane) -> ScheduledBatch | None:
        """The next of the batches that wait for this lane of this engine, without what was closed meanwhile."""
        for passed_on in in_lane(engine.retries, lane):
            engine.retries.remove(passed_on)
            self._num_retries -= 1
            if slices := self.reclaim([passed_on]):
                self._count(slices, 1)
                assert passed_on.failed_on is not None
                return passed_on.elsewhere(slices, failed_on=passed_on.failed_on)
        return None

    def _count(self, slices: Iterable[Slice], sign: int) -> None:
        for slice_ in slices:
            self.queued_tokens[slice_.request.request_class] += sign * slice_.own_tokens

    def next_batch(self, now: float) -> tuple[ReadyEngine, ScheduledBatch] | None:
        """The next batch and the engine that should have it; None where nothing waits or no engine should have more.

        Engines that put urgent batches first have a lane for them and one for the others, each filled as if it were
        alone; but while there are suspects, classes take turns as with other engines (see `Backlog`).
        """
        if not self.waits and not self._num_retries:
            return None
        if len(self.engines) == 1 and (chosen := self._alone_for(self.engines[0])) is not None:
            return chosen
        for lane in self.lanes:
            if (chosen := self._next_batch(lane, now)) is not None:
                return chosen
        return None

    def _alone_for(self, engine: ReadyEngine) -> tuple[ReadyEngine, ScheduledBatch] | None:
        """The batch of a query that waits alone, if this engine, the only one, idles: what `_next_batch` would find in
        many more steps, which take longer than all else here on a machine that has little to do."""
        if engine.batches or self._num_retries:
            return None
        batch = self.backlog.take_alone(self._sizes.max_tokens(engine.limits, is_mixed=False))
        return None if batch is None else (engine, batch)

    @property
    def lanes(self) -> Sequence[Lane]:
        """The lanes of its engines, the urgent one first; None alone where all work goes the same way."""
        return _LANES if self._have_lanes and not self.backlog.has_suspects else _ONE_LANE

    def lane_ahead(self, request_class: RequestClass) -> Lane:
        """The lane of an engine that is computed before new work of a class."""
        is_urgent = request_class == RequestClass.INTERACTIVE
        return RequestClass.INTERACTIVE if is_urgent and self.lanes is _LANES else None

    def _next_batch(self, lane: Lane, now: float) -> tuple[ReadyEngine, ScheduledBatch] | None:
        """The next batch for a lane.

        The engine with the least to do comes first, and those with an idle stream before all others: they take what
        there is, or their share of it where several streams idle. Behind other batches one is staged only if it is at
        least as large as the one sent last: a smaller one would be sealed too soon, as all that comes while it waits in
        the engine could still have joined it. But it does not wait beside a long sequence that leaves cores idle, nor
        if it passes bulk: what is not in the engine when the batch ahead ends waits for the next of bulk, too.
        """
        num_tokens = self.waiting_tokens(lane)
        if not num_tokens and not self._num_retries:
            return None
        engines = self._with_room(lane)
        for other in engines:
            if other.retries and (retry := self._take_retry(other, lane)) is not None:
                return other, retry
        if not num_tokens or not engines:
            return None
        engine = _first(engines, lane)
        ahead = engine.lane(lane)
        passes_bulk = lane == RequestClass.INTERACTIVE and len(ahead) < len(engine.batches)
        is_beside = self._leaves_cores_idle(engine.limits, ahead) or (engine.limits.overlaps and passes_bulk)
        may_wait = not engine.num_idle_streams and not is_beside and not passes_bulk
        if may_wait and ahead and num_tokens < ahead[-1].num_tokens:
            return None
        is_mixed = self._is_mixed(now)
        max_tokens = self._sizes.max_tokens_of(lane, engine.limits, is_mixed=is_mixed)
        part = self._part(engine, engines, lane, max_tokens)
        group = self._sizes.group_tokens(engine.limits)
        if group:
            is_quiet = not self._is_interactive_about(now, self._policy.group_memory)
            group = self._part(engine, engines, lane, group) if is_quiet else 0
        batch = self._batch_for(engine, lane, max_tokens, part=part, group_tokens=group)
        if batch is None:
            return None
        batch.gives_way = is_mixed
        batch.is_beside = is_beside
        return engine, batch

    def _part(self, engine: ReadyEngine, engines: Sequence[ReadyEngine], lane: Lane, max_tokens: int) -> int:
        """How many tokens one of these engines may take of what waits for a lane, `max_tokens` at most."""
        num_idle = sum([engine.num_idle_streams for engine in engines])
        if num_idle <= 1:
            return max_tokens
        limits = engine.limits
        return split_evenly(self.waiting_tokens(lane), num_idle, least=self._sizes.min_tokens(limits), most=max_tokens)

    def _batch_for(
        self, engine: ReadyEngine, lane: Lane, max_tokens: int, *, part: int, group_tokens: int
    ) -> ScheduledBatch | None:
        """Take a batch of so many tokens for an engine out of the backlog: its part of `max_tokens`. None where it is a
        suspect's turn and the engine is busy."""
        limits = engine.limits
        budget = self._sizes.budget(limits, part, lane=lane, group_tokens=group_tokens)
        if lane is None:
            batch = self.backlog.next_batch(budget, may_be_suspect=not engine.batches)
        else:
            batch = self.backlog.next_batch_of(lane, budget)
        if batch is None:
            return None
        if part < max_tokens:
            batch.max_tokens = max_tokens  # so that the rate takes a small share for the small batch that it is
        if batch.release is Release.FULL:
            if part < max_tokens:
                batch.release = Release.SHARE
            elif max_tokens < self._sizes.max_tokens(limits, is_mixed=False):
                batch.release = Release.CLASS
        return batch

    def _with_room(self, lane: Lane) -> list[ReadyEngine]:
        """Engines that may get a batch for a lane now."""
        engines = with_room(self.engines, lane)
        if lane == RequestClass.INTERACTIVE:
            return [engine for engine in engines if not engine.owes_bulk(self._policy.bulk_share)]
        return engines

    def next_engine(self, lane: Lane, now: float) -> tuple[ReadyEngine, int] | None:
        """The one that should have the next batch for a lane, and how many tokens that would be; None where none has
        room."""
        engines = self._with_room(lane)
        if not engines:
            return None
        engine = _first(engines, lane)
        part = self._part(engine, engines, lane, self.max_tokens(engine.limits, lane, now))
        return engine, min(self.waiting_tokens(lane), part)

    def waiting_tokens(self, lane: Lane) -> int:
        """Tokens that wait for this lane of an engine."""
        num_tokens = self.backlog.num_tokens
        return sum(num_tokens) if lane is None else num_tokens[lane]

    def _leaves_cores_idle(self, limits: EngineLimits, batches: Sequence[ScheduledBatch]) -> bool:
        """Whether what an engine computes is, or ends in, one sequence that takes longer than queries should wait.

        A batch of many short sequences keeps all cores busy to its end, however long it takes, so nothing is gained by
        sealing a small one behind it.
        """
        if not limits.overlaps or not batches:
            return False
        return batches[-1].max_seqlen > self._sizes.max_tokens(limits, is_mixed=True)

    def _is_mixed(self, now: float) -> bool:
        """Whether bulk waits while interactive work is about."""
        is_bulk = self.backlog.num_tokens[RequestClass.BULK] > 0
        return is_bulk and self._is_interactive_about(now, self._policy.interactive_memory)

    def _is_interactive_about(self, now: float, memory: float) -> bool:
        """Whether interactive work waits, or came within so many seconds."""
        return self.backlog.num_tokens[RequestClass.INTERACTIVE] > 0 or now - self.last_interactive_at < memory

    def max_tokens(self, limits: EngineLimits, lane: Lane, now: float) -> int:
        """The most tokens of a batch for a lane of this engine, by choice."""
        return self._sizes.max_tokens_of(lane, limits, is_mixed=self._is_mixed(now))

    def note_begun(self, now: float) -> None:
        """Note that each stream now computes the oldest batch that it could. To be called after every event."""
        for engine in self.engines:
            if not engine.batches:
                continue
            for lane in self.lanes:
                for batch in islice(engine.lane(lane), engine.limits.streams):
                    if batch.began == math.inf:
                        batch.began = now

    def free_at_by_class(self, now: float) -> list[float]:
        """`free_at` of each class."""
        if not any([engine.batches for engine in self.engines]):
            return [now] * NUM_CLASSES
        interactive = self.free_at(RequestClass.INTERACTIVE, now)
        return [interactive, interactive if self.lanes is _ONE_LANE else self.free_at(RequestClass.BULK, now)]

    def free_at(self, request_class: RequestClass, now: float) -> float:
        """When the engines will be done with what goes before new work of a class, in time.monotonic() seconds."""
        rate, lane = self.rate.tokens_per_second, self.lane_ahead(request_class)
        if not rate:
            return now
        seconds = 0.0
        for engine in self.engines:
            if engine.batches:
                seconds += sum(_seconds_left(engine.lane(lane), rate, now))
        return now + seconds * rate / self.tokens_per_second if seconds else now

    def batch_seconds(self, now: float) -> float:
        """How long the largest batch computes that would be sent now; 0 where that is not known."""
        if not self.engines or not self.rate.tokens_per_second:
            return 0.0
        rate, limits, lane = self.rate, self.engines[0].limits, self.lanes[-1]
        made_of = rate.tokens_per_second, rate.beyond_fixed, limits, lane, self._is_mixed(now)
        if made_of != self._batch_seconds_of:  # which is seldom, and this is asked after every event
            self._batch_seconds_of = made_of
            self._batch_seconds = self.max_tokens(limits, lane, now) / rate.tokens_per_second
        return self._batch_seconds

    def take_hopeless(self, now: float, *, memory: float) -> list[ScheduledRequest]:
        """Waiting requests whose deadline comes before the next batch would be done; they are no longer watched.

        None while no engine has room for a batch. An engine that idles, and did for so many seconds (`memory`), is
        tried instead: else a rate that was measured in a bad moment would be believed for ever.
        """
        hopeless = []
        for request_class, deadlines in enumerate(self.deadlines):
            if deadlines.next < math.inf:
                hopeless += deadlines.take_due(self._answered_at(RequestClass(request_class), now, memory))
        return hopeless

    def _answered_at(self, request_class: RequestClass, now: float, memory: float) -> float:
        """When a batch would be done that is sent for a class now; -inf where it is not known, or has no room."""
        rate, lane = self.rate.tokens_per_second, request_class if len(self.lanes) > 1 else None
        following = self.next_engine(lane, now) if rate else None
        if following is None:
            return -math.inf
        engine, num_tokens = following
        if not engine.batches and now - self.last_batch_at >= memory:
            return -math.inf
        ahead = engine.lane(self.lane_ahead(request_class))
        return now + _seconds_until_free(_seconds_left(ahead, rate, now), engine.limits.streams) + num_tokens / rate


def _first(engines: Sequence[ReadyEngine], lane: Lane) -> ReadyEngine:
    """The one of these engines that should have the next batch for a lane."""
    return engines[0] if len(engines) == 1 else min(engines, key=lambda engine: claims(engine, lane))


def _seconds_until_free(seconds: list[float], streams: int) -> float:
    """Until a stream would take another batch, behind batches that take so many seconds each."""
    ends, staged = seconds[:streams], seconds[streams:]
    if len(ends) < streams:
        return 0.0
    heapq.heapify(ends)
    for one in staged:
        heapq.heapreplace(ends, ends[0] + one)
    return ends[0]


def _seconds_left(batches: Sequence[ScheduledBatch], rate: float, now: float) -> list[float]:
    """The seconds that each batch has left. One that is late counts as nearly done."""
    return [
        max(0.0, (batch.num_tokens + batch.passed_tokens) / rate - max(0.0, now - batch.began)) for batch in batches
    ]
