"""One model: its waiting work, its engines, and which batch goes to which engine next."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from batch_manager.backlog import Backlog, Budget
from batch_manager.batches import Batch, Release, Request, Slice
from batch_manager.engines import Engine, Rate, with_room
from batch_manager.messages import Policy
from batch_manager.queue import Queue
from engine.types import EngineLimits
from wire.vocabulary import NUM_CLASSES, RequestClass

# An engine is within 5 % of its best speed at its target; by the cost that every batch has, at an eighth of it about
# within 30 %.
_MIN_PART_OF_TARGET = 8


class Model:
    """Everything the scheduler keeps for one model.

    queued_tokens  by class: waiting and in engines
    gives_up_at    time.monotonic() seconds after which work is refused for want of an engine; inf while there is one
    last_batch_at  time.monotonic() seconds of the last finished batch, 0 = none yet
    """

    def __init__(self, policy: Policy, *, now: float) -> None:
        self._policy = policy
        self.backlog = Backlog(policy.bulk_share)
        self.rate = Rate()
        self.engines: list[Engine] = []
        self.max_seqlen: float = math.inf  # tokens of one sequence; not known before the first engine is
        self.queued_tokens = [0] * NUM_CLASSES
        self.gives_up_at = now + policy.engine_restart_grace
        self.last_batch_at = 0.0
        self.last_interactive_at = -math.inf
        self._num_streams = 0  # of all ready engines, or of those that were there last

    @property
    def tokens_per_second(self) -> float:
        """What all streams of all ready engines compute together, each at `rate`; 0 where that is not known.

        While no engine is there, what the last ones did: they will be back, and then what waits goes as fast.
        """
        return self.rate.tokens_per_second * self._num_streams

    @property
    def waits(self) -> bool:
        """Whether anything waits for an engine."""
        return bool(self.backlog.num_tokens(RequestClass.INTERACTIVE) or self.backlog.num_tokens(RequestClass.BULK))

    def add(self, request: Request) -> None:
        """A new request waits."""
        self.backlog.queue(request).push(request)
        self.queued_tokens[request.request_class] += request.waiting_tokens
        if request.request_class == RequestClass.INTERACTIVE:
            self.last_interactive_at = request.arrived

    def forget(self, request: Request) -> None:
        """A request is closed; what of it waits is not wanted any more."""
        if request.waiting_tokens:
            self.queued_tokens[request.request_class] -= request.waiting_tokens
            self.backlog.queue(request).forget(request)

    def add_engine(self, engine: Engine) -> None:
        """An engine is ready."""
        self.engines.append(engine)
        self.rate.seed(engine.limits.tokens_per_second)
        self.gives_up_at = math.inf
        self._note_limits()

    def remove_engine(self, engine: Engine, *, now: float) -> None:
        """An engine is gone."""
        self.engines.remove(engine)
        self._note_limits()
        if not self.engines:
            self.gives_up_at = now + self._policy.engine_restart_grace

    def _note_limits(self) -> None:
        """While no engine is there, what the last one could take is the best guess."""
        if self.engines:
            self._num_streams = sum(engine.limits.streams for engine in self.engines)
        self.max_seqlen = min((engine.limits.max_seqlen for engine in self.engines), default=self.max_seqlen)

    def first_too_long(self, request: Request) -> int:
        """Which sequence of the request no engine of this model can take."""
        lengths = (stop - start for start, stop in pairwise(request.cu_seqlens))
        return next(index for index, length in enumerate(lengths) if length > self.max_seqlen)

    def note_done(self, batch: Batch, compute_seconds: float, *, now: float) -> None:
        """A batch has its rows."""
        self.last_batch_at = now
        self.rate.observe(batch.num_tokens, compute_seconds, max_tokens=batch.max_tokens, is_beside=batch.is_beside)
        self._count(batch.slices, -1)

    def reclaim(self, batches: Iterable[Batch]) -> list[Slice]:
        """What of batches that gave no rows is still wanted: to be refused, or put back by `requeue` or `retry`."""
        pieces = [piece for batch in batches for piece in batch.slices]
        self._count(pieces, -1)
        return [piece for piece in pieces if piece.request.is_open]

    def requeue(self, pieces: Sequence[Slice]) -> None:
        """Slices wait again, in their order before everything else of their kind."""
        self._count(pieces, 1)
        by_queue: dict[Queue, list[Slice]] = {}
        for piece in pieces:
            by_queue.setdefault(self.backlog.queue(piece.request), []).append(piece)
        for queue, its_pieces in by_queue.items():
            queue.push_front(its_pieces)

    def retry(self, batches: Sequence[Batch]) -> None:
        """Batches, each of one class, have to be dispatched just so, before everything else of their kind."""
        by_queue: dict[Queue, list[Batch]] = {}
        for batch in batches:
            self._count(batch.slices, 1)
            by_queue.setdefault(self.backlog.queue(batch.slices[0].request), []).append(batch)
        for queue, its_batches in by_queue.items():
            queue.retry(its_batches)

    def pass_on(self, batch: Batch, engine: Engine) -> None:
        """A batch that failed on another engine waits for this one, before everything else that it could get."""
        self._count(batch.slices, 1)
        engine.retries.append(batch)

    def _take_retry(self, engine: Engine) -> Batch | None:
        """The next of the batches that wait for this engine, without what was closed meanwhile."""
        while engine.retries:
            passed_on = engine.retries.popleft()
            if pieces := self.reclaim([passed_on]):
                self._count(pieces, 1)
                assert passed_on.failed_on is not None
                return passed_on.elsewhere(pieces, failed_on=passed_on.failed_on)
        return None

    def _count(self, pieces: Iterable[Slice], sign: int) -> None:
        for piece in pieces:
            self.queued_tokens[piece.request.request_class] += sign * piece.num_tokens

    def next_batch(self, now: float) -> tuple[Engine, Batch] | None:
        """The next batch and the engine that should have it; None where nothing waits or no engine should have more.

        The engine with the least to do comes first, and those with an idle stream before all others: they take what
        there is, or their share of it where several streams idle. Behind other batches one is staged only if it is at
        least as large as the one sent last: a smaller one would be sealed too soon, as all that comes while it waits in
        the engine could still have joined it. But beside a long sequence that leaves cores idle it does not wait.
        """
        engines = with_room(self.engines)
        for engine in engines:
            if engine.retries and (retry := self._take_retry(engine)) is not None:
                return engine, retry
        num_bulk = self.backlog.num_tokens(RequestClass.BULK)
        num_tokens = num_bulk + self.backlog.num_tokens(RequestClass.INTERACTIVE)
        if not num_tokens or not engines:
            return None
        engine = min(engines, key=lambda engine: (not engine.num_idle_streams, engine.load, len(engine.batches)))
        is_beside = self._leaves_cores_idle(engine)
        if not engine.num_idle_streams and not is_beside and num_tokens < engine.newest.num_tokens:
            return None
        is_mixed = num_bulk > 0 and self._is_interactive_about(num_bulk < num_tokens, now)
        max_tokens = self._max_tokens(engine.limits, is_mixed=is_mixed)
        num_idle = sum(engine.num_idle_streams for engine in engines)
        part = share(num_tokens, num_idle, least=self._min_tokens(engine.limits), most=max_tokens)
        batch = self.backlog.next_batch(_budget(engine.limits, part), may_be_suspect=not engine.batches)
        if batch is None:
            return None
        batch.is_beside = is_beside
        if part < max_tokens:
            batch.max_tokens = max_tokens  # so that the rate takes a small share for the small batch that it is
        if batch.release is Release.FULL:
            if part < max_tokens:
                batch.release = Release.SHARE
            elif is_mixed and max_tokens < self._max_tokens(engine.limits, is_mixed=False):
                batch.release = Release.CLASS
        return engine, batch

    def _leaves_cores_idle(self, engine: Engine) -> bool:
        """Whether what it computes is, or ends in, one sequence that takes longer than queries should wait.

        A batch of many short sequences keeps all cores busy to its end, however long it takes, so nothing is gained by
        sealing a small one behind it.
        """
        if not engine.limits.overlaps or not engine.batches:
            return False
        return engine.newest.max_seqlen > self._max_tokens(engine.limits, is_mixed=True)

    def _is_interactive_about(self, waits: bool, now: float) -> bool:
        return waits or now - self.last_interactive_at < self._policy.interactive_memory

    def _max_tokens(self, limits: EngineLimits, *, is_mixed: bool) -> int:
        """Of a batch for this engine, by choice: as many as it gains by, and as few as are computed in time."""
        max_tokens = self._policy.max_batch_tokens or limits.target_num_tokens or limits.max_num_tokens
        if self.rate.tokens_per_second:
            seconds = limits.max_batch_seconds_mixed if is_mixed else limits.max_batch_seconds
            in_time = int(self.rate.tokens_per_second * seconds)
            max_tokens = min(max_tokens, max(self._min_tokens(limits), in_time))
        return min(max_tokens, limits.max_num_tokens)

    def _min_tokens(self, limits: EngineLimits) -> int:
        """How small batches are made at most, be it to keep to a time or to share work out."""
        known = limits.target_num_tokens // _MIN_PART_OF_TARGET
        return min(known, self._policy.min_batch_tokens) if known else self._policy.min_batch_tokens


def share(num_tokens: int, num_idle: int, *, least: int, most: int) -> int:
    """What one stream takes of so many waiting tokens so that, where several idle, all of them are done soonest."""
    return min(most, max(least, -(-num_tokens // num_idle))) if num_idle > 1 else most


def _budget(limits: EngineLimits, max_tokens: int) -> Budget:
    return Budget(max_tokens, limits.max_num_tokens, limits.max_num_seqs, limits.token_buckets)
