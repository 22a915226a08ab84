"""Decides in one call what is sent next, what is tried again and when, what is given up. Knows no thread and no clock.

Inputs are cut into batches, and each is pending until it has its answer. Times are time.monotonic() seconds.
"""

import heapq
import itertools
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from embedline.client.connection import attempt_id
from embedline.client.endpoints import Endpoint, Endpoints
from embedline.client.errors import DeadlineExceeded, RequestFailed
from embedline.client.failure import Failure, Kind
from embedline.client.preference import RequestProcessingPreference
from embedline.client.tasks import UNSAID, AnswerPart, Batch, Task

_NO_SUCH_ROUTE = (404, 405)
_NOT_IN_THIS_FORM = (400, 406, 415, 422)
_FIELD = b"encoding_format"
_ABOUT_THE_FORM = re.compile(rb"encoding_format|unknown variant|[`'\"](bytes|base64)[`'\"]")
_TOO_MANY_ITEMS = re.compile(
    rb"batch.?size|too many|at most [\d,]+ (items|inputs|texts)|array is too long|"
    rb"max\w{0,20} .{0,40}(items|inputs|texts|batch|array|tokens per request)",
    re.IGNORECASE,
)
_RETRIED = frozenset({408, 409, 425, 429})  # tried again, and 5xx but for the next
_NEVER_RETRIED = frozenset({501, 505})
_BACKOFF_FACTOR = 4.0  # of the wait before each next retry
_MAX_BACKOFF_SECONDS = 30.0  # of that wait
_CHECKED_TOGETHER = 1024  # inputs of a list


@dataclass(slots=True, eq=False)
class PendingBatch:
    """One batch on its way to an answer. Only the calling thread changes it, and only while no attempt is under way."""

    batch: Batch
    endpoint: Endpoint | None = None  # where it is, or was last
    way: int = 0  # which of the task's ways to ask is used there
    is_finding_way: bool = False  # stays with its endpoint and its way, whatever others use
    deadline: float = 0.0  # of the attempt; time.monotonic() seconds
    num_retries: int = 0
    tried: set[Endpoint] = field(default_factory=set)  # since it last waited
    history: list[str] = field(default_factory=list)
    has_notes: bool = False  # the history says more than what failed
    refusal: Failure | None = None  # of another way to ask: the one to show if all are refused
    refused_forms: set[str] = field(default_factory=set)

    def with_batch(self, batch: Batch) -> "PendingBatch":
        """A part of it, as far as it has come."""
        return replace(
            self,
            batch=batch,
            tried=set(self.tried),
            history=list(self.history),
            refused_forms=set(self.refused_forms),
        )

    def note(self, failure: Failure) -> None:
        """One more attempt was in vain."""
        assert self.endpoint is not None
        self.history.append(f"{self.endpoint.origin.url}: {failure.words}")

    def note_what_next(self, words: str) -> None:
        """Note what is done about the last failure."""
        self.history[-1] += f", {words}"
        self.has_notes = True


class Batches:
    """The batches of one call. Reads the inputs in the thread that asks.

    Raises TypeError for a wrong item: of a list or tuple at once, before anything is sent; of a stream when it is read.
    """

    def __init__(self, task: Task[Any], items: Iterable[Any], *, batch_size: int, max_chars: int | None) -> None:
        if isinstance(items, Sequence):
            for start in range(0, len(items), _CHECKED_TOGETHER):  # what is made of them is not kept: it may be large
                task.prepare(list(items[start : start + _CHECKED_TOGETHER]), start)
        self.total = len(items) if isinstance(items, Sized) else None
        self._task = task
        self._items = iter(items)
        self._batch_size = sys.maxsize if task.is_whole else batch_size
        self._max_chars = None if task.is_whole else max_chars
        self._held: list[Any] = []  # read, and not in a batch yet
        self._start = 0  # of the next batch
        self.are_over = self.total == 0

    def next(self, most: int | None) -> Batch | None:
        """The next batch, of at most so many items; None if there is none. Raises TypeError for a wrong item."""
        size = self._batch_size if most is None or self._task.is_whole else min(self._batch_size, most)
        new = list(itertools.islice(self._items, max(0, size - len(self._held))))
        self._held += self._task.prepare(new, self._start + len(self._held))
        count = self._fitting(min(size, len(self._held)))
        if not count:
            self.are_over = True
            return None
        batch = Batch(self._start, self._held[:count])
        del self._held[:count]
        self._start = batch.stop
        self.are_over = batch.stop == self.total
        return batch

    def _fitting(self, count: int) -> int:
        """How many of the first items fit into one request; always one, if there is one."""
        if self._max_chars is None:
            return count
        lengths = itertools.accumulate(map(self._task.length, self._held[:count]))
        return max(min(count, 1), sum(length <= self._max_chars for length in lengths))


class PendingBatches:
    """The batches of one call, from the first attempt to the end."""

    def __init__(
        self,
        task: Task[Any],
        batches: Batches,
        endpoints: Endpoints,
        preference: RequestProcessingPreference,
        *,
        request_id: str,
        deadline: float,
    ) -> None:
        self._task = task
        self._batches = batches
        self._endpoints = endpoints
        self._preference = preference
        self._request_id = request_id
        self._deadline = deadline
        self._retries: list[tuple[float, int, PendingBatch]] = []  # a heap: when, and the order where that is equal
        self._count = itertools.count()
        self._chance = random.Random()
        self._num_done = 0  # inputs
        self.num_in_flight = 0  # attempts

    @property
    def are_over(self) -> bool:
        return self._batches.are_over and not self._retries and not self.num_in_flight

    @property
    def is_last(self) -> bool:
        """Whether nothing is left beside the one attempt that is in flight."""
        return self._batches.are_over and not self._retries and self.num_in_flight == 1

    def take(self, now: float) -> Iterator[PendingBatch]:
        """The batches to begin now, each with its endpoint and way. Raises what the caller's own iterator raises."""
        while self.num_in_flight < self._preference.max_concurrent_requests and now < self._deadline:
            if self._retries and self._retries[0][0] <= now:
                pending = self._begin_again(now)
            else:
                pending = None if self._batches.are_over else self._begin_next(now)
            if pending is None:
                return
            assert pending.endpoint is not None
            if not pending.is_finding_way:
                pending.way, _ = pending.endpoint.way(self._task.name)
            pending.deadline = min(now + self._preference.timeout_s, self._deadline)
            self.num_in_flight += 1
            yield pending

    def _begin_again(self, now: float) -> PendingBatch | None:
        pending, is_first = self._retries[0][2], self.num_in_flight == 0
        if pending.is_finding_way:
            assert pending.endpoint is not None
            found = pending.endpoint if pending.endpoint.try_begin(now, is_first=is_first) else None
        else:
            found = self._endpoints.begin(now, is_first=is_first, avoid=pending.tried)
        if found is None:
            return None
        pending.endpoint = found
        heapq.heappop(self._retries)
        return pending

    def _begin_next(self, now: float) -> PendingBatch | None:
        endpoint = self._endpoints.begin(now, is_first=self.num_in_flight == 0)
        if endpoint is None:
            return None
        batch = None
        try:
            batch = self._batches.next(endpoint.max_items)
        finally:
            if batch is None:
                endpoint.ended()
        return None if batch is None else PendingBatch(batch, endpoint)

    def wakes_at(self, now: float) -> float:
        """When something may be begun without an answer's coming, or the call's time will be over."""
        # after the deadline the attempts in flight end by themselves
        times = [self._deadline if now < self._deadline else float("inf")]
        if self._retries and self._retries[0][0] > now:
            times.append(self._retries[0][0])
        if not self._batches.are_over or (self._retries and self._retries[0][0] <= now):  # an endpoint has no room
            times.append(self._endpoints.wakes_at(now))
        return min(times)

    def finished(self, pending: PendingBatch, part: AnswerPart[Any], seconds: float) -> None:
        """An attempt brought its answer."""
        assert pending.endpoint is not None
        self.num_in_flight -= 1
        self._num_done += len(pending.batch.items)
        pending.endpoint.answered(seconds, is_usual=2 * len(pending.batch.items) > self._preference.batch_size)
        learn(self._task, pending, part)

    def failed(self, pending: PendingBatch, failure: Failure, now: float) -> None:
        """An attempt was in vain. Raises RequestFailed if no other one is made."""
        self.num_in_flight -= 1
        self._tell_endpoint(pending, failure, now)
        pending.note(failure)
        is_late = now >= self._deadline
        if not is_late and (self._try_another_way(pending, failure, now) or self._split(pending, failure, now)):
            return
        failure = most_telling(pending.refusal, failure)
        if is_late or not may_help(failure) or pending.num_retries >= self._preference.max_retries:
            raise self._given_up(pending, failure, is_late=is_late or failure.kind in (Kind.TIMEOUT, Kind.NO_TURN))
        self._try_again(pending, failure, now)

    def dropped(self, pending: PendingBatch) -> None:
        """An attempt that was still in flight when the call ended."""
        assert pending.endpoint is not None
        self.num_in_flight -= 1
        pending.endpoint.ended()

    def check_deadline(self, now: float) -> None:
        """Raises DeadlineExceeded if the call's time is over and what is left waits to be sent."""
        if now < self._deadline or self.num_in_flight:
            return
        pending = self._retries[0][2] if self._retries else None
        if pending is None and (batch := self._batches.next(None)) is not None:
            pending = PendingBatch(batch)
        if pending is not None:
            raise self._given_up(pending, Failure(Kind.TIMEOUT, "total_timeout_s is over"), is_late=True)

    def _tell_endpoint(self, pending: PendingBatch, failure: Failure, now: float) -> None:
        endpoint = pending.endpoint
        assert endpoint is not None
        is_own_timeout = failure.kind is Kind.TIMEOUT and pending.deadline < self._deadline
        if failure.kind is Kind.CONNECTION or is_own_timeout:
            pause = self._preference.initial_backoff_ms / 1000
            endpoint.failed(now, self._chance.uniform(0.5, 1.0) * pause)
        elif failure.status in (429, 503):
            endpoint.refused()
        else:
            endpoint.ended()

    def _try_another_way(self, pending: PendingBatch, failure: Failure, now: float) -> bool:
        """Put the batch back with the next way to ask; False if there is none."""
        way = next_way(self._task, pending, failure)
        if way is None:
            return False
        pending.refusal = most_telling(pending.refusal, failure)
        pending.way, pending.is_finding_way = way, True
        pending.note_what_next("asked in another way")
        self._put_back(pending, now)
        return True

    def _split(self, pending: PendingBatch, failure: Failure, now: float) -> bool:
        """A request with more than the server takes goes in halves, and those after it are smaller."""
        if self._task.is_whole or len(pending.batch.items) < 2 or not has_too_many_items(failure):
            return False
        assert pending.endpoint is not None
        pending.note_what_next("sent in halves")
        for half in pending.batch.halves():
            pending.endpoint.takes_fewer(len(half.items))
            self._put_back(pending.with_batch(half), now)
        return True

    def _try_again(self, pending: PendingBatch, failure: Failure, now: float) -> None:
        assert pending.endpoint is not None
        pending.is_finding_way = False
        pending.tried.add(pending.endpoint)
        wait = 0.0
        if not self._endpoints.others_work(pending.tried):
            pending.tried = {pending.endpoint}
            initial = self._preference.initial_backoff_ms / 1000
            wait = seconds_to_wait(failure, pending.num_retries, initial=initial, chance=self._chance)
        is_late = now + wait >= self._deadline
        if is_late or wait > self._preference.timeout_s:
            pending.note_what_next(f"not tried again, for that would be after {wait:.3g} s")
            raise self._given_up(pending, failure, is_late=is_late)
        pending.num_retries += 1
        pending.note_what_next(f"tried again after {wait:.3g} s")
        self._put_back(pending, now + wait)

    def _put_back(self, pending: PendingBatch, due: float) -> None:
        heapq.heappush(self._retries, (due, next(self._count), pending))

    def _given_up(self, pending: PendingBatch, failure: Failure, *, is_late: bool) -> RequestFailed:
        """The error that ends the call: which request it was, what was done, what is kept."""
        first, last = pending.batch.start, pending.batch.stop - 1
        inputs = f"input {first}" if first == last else f"inputs {first} to {last}"
        name = attempt_id(self._request_id, first, 0)
        url = "" if pending.endpoint is None else pending.endpoint.origin.url
        request = f"{self._task.method} {url}{self._task.ways[pending.way].path} with {inputs} (x-request-id {name})"
        attempts = "1 attempt" if len(pending.history) == 1 else f"{len(pending.history)} attempts"
        says_more = len(pending.history) > 1 or pending.has_notes
        done = f"; {attempts}: {'; '.join(pending.history)}" if says_more else ""
        of = "" if self._batches.total is None else f" of {self._batches.total}"
        kind = DeadlineExceeded if is_late else RequestFailed
        return kind(
            f"{request}: {failure.words}{done}. {self._num_done}{of} inputs are done",
            request=request,
            status=failure.status,
            start=pending.batch.start,
            stop=pending.batch.stop,
            attempts=pending.history,
        )


def has_too_many_items(failure: Failure) -> bool:
    """Whether a server says that a request with fewer inputs would do."""
    if failure.status in _NOT_IN_THIS_FORM:
        return _TOO_MANY_ITEMS.search(failure.body) is not None
    return failure.status == 413


def next_way(task: Task[Any], pending: PendingBatch, failure: Failure) -> int | None:
    """The way to ask that is tried after this one; None if it is not to blame, or was the last.

    Servers say in many words that they don't know a route or a form; often the same status says that an input is wrong.
    So every 400 or 422 is asked again in the other forms until one has worked, and the error that is shown in the end
    is the first one that does not look like a wrong guess of ours. A way that has worked is kept for the base URL.
    """
    assert pending.endpoint is not None
    known, is_sure = pending.endpoint.way(task.name)
    if failure.status is None or (is_sure and pending.way == known and _FIELD not in failure.body):
        return None
    if is_sure and pending.way < known and failure.status in (*_NO_SUCH_ROUTE, *_NOT_IN_THIS_FORM):
        return known  # found out by another request meanwhile
    tried = task.ways[pending.way]
    later = range(pending.way + 1, len(task.ways))
    if failure.status in _NO_SUCH_ROUTE:
        return next((at for at in later if task.ways[at].path != tried.path), None)
    if failure.status in _NOT_IN_THIS_FORM and not has_too_many_items(failure):
        pending.refused_forms.add(tried.form)
        if _FIELD not in failure.body:
            pending.refused_forms.add(UNSAID)  # that would change nothing
        return next((at for at in later if task.ways[at].form not in pending.refused_forms), None)
    return None


def most_telling(first: Failure | None, failure: Failure) -> Failure:
    """Choose the one to show of the refusals of two ways to ask."""
    if first is None or failure.status not in (*_NO_SUCH_ROUTE, *_NOT_IN_THIS_FORM):
        return failure
    return failure if _is_wrong_guess(first) and not _is_wrong_guess(failure) else first


def _is_wrong_guess(failure: Failure) -> bool:
    return failure.status in _NO_SUCH_ROUTE or _ABOUT_THE_FORM.search(failure.body) is not None


def learn(task: Task[Any], pending: PendingBatch, part: AnswerPart[Any]) -> None:
    """An answer came. Servers that pass over what they don't know answer in a form of their own choice. A better one
    may still be had by asking for it, so each in between is tried once."""
    assert pending.endpoint is not None
    path = task.ways[pending.way].path
    best = next((at for at, way in enumerate(task.ways) if (way.path, way.form) == (path, part.form)), None)
    if best is None or best <= pending.way + 1:
        pending.endpoint.learn(task.name, pending.way if best is None else max(best, pending.way), is_sure=True)
    else:
        pending.endpoint.learn(task.name, pending.way + 1, is_sure=False)


def may_help(failure: Failure) -> bool:
    """Whether the same request may be answered next time."""
    if failure.kind is Kind.STATUS:
        assert failure.status is not None
        return failure.status in _RETRIED or (failure.status >= 500 and failure.status not in _NEVER_RETRIED)
    return failure.kind in (Kind.CONNECTION, Kind.TIMEOUT, Kind.NO_TURN, Kind.NO_THREAD)


def seconds_to_wait(failure: Failure, num_retries: int, *, initial: float, chance: random.Random) -> float:
    """Never less than the server asks for. Chance spreads out those that were refused together."""
    if failure.retry_after is not None:
        return failure.retry_after + chance.uniform(0.0, 0.1 + 0.1 * failure.retry_after)
    return chance.uniform(0.5, 1.0) * min(_MAX_BACKOFF_SECONDS, initial * _BACKOFF_FACTOR**num_retries)
