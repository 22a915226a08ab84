"""What is sent next in one call, what is tried again and when, what is given up. Knows no thread and no clock.

Times are time.monotonic() seconds.
"""

import heapq
import itertools
import random
from collections.abc import Iterator
from typing import Any

from embedline.client.calls import asking
from embedline.client.calls.backoff import may_help, seconds_to_wait
from embedline.client.calls.batches import Batches
from embedline.client.calls.job import Job, Situation, given_up
from embedline.client.preference import RequestProcessingPreference
from embedline.client.tasks.task import Part, Task
from embedline.client.transport.endpoints import Endpoints
from embedline.client.transport.failure import Failure, Kind

_TOO_BUSY = (429, 503)
_LATE = (Kind.TIMEOUT, Kind.NO_TURN)


class Jobs:
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
        self._again: list[tuple[float, int, Job]] = []  # a heap: when, and the order where that is equal
        self._count = itertools.count()
        self._chance = random.Random()
        self._num_done = 0  # inputs
        self.num_in_flight = 0  # attempts

    @property
    def are_over(self) -> bool:
        return self._batches.are_over and not self._again and not self.num_in_flight

    @property
    def is_last(self) -> bool:
        """Whether nothing is left beside the one attempt that is in flight."""
        return self._batches.are_over and not self._again and self.num_in_flight == 1

    def take(self, now: float) -> Iterator[Job]:
        """The jobs to begin now, each with its endpoint and way. Raises what the caller's own iterator raises."""
        while self.num_in_flight < self._preference.max_concurrent_requests and now < self._deadline:
            if self._again and self._again[0][0] <= now:
                job = self._begin_again(now)
            else:
                job = None if self._batches.are_over else self._begin_next(now)
            if job is None:
                return
            assert job.endpoint is not None
            if not job.is_finding_way:
                job.way, _ = job.endpoint.way(self._task.name)
            job.deadline = min(now + self._preference.timeout_s, self._deadline)
            self.num_in_flight += 1
            yield job

    def _begin_again(self, now: float) -> Job | None:
        job, is_first = self._again[0][2], self.num_in_flight == 0
        if job.is_finding_way:
            assert job.endpoint is not None
            found = job.endpoint if job.endpoint.try_begin(now, is_first=is_first) else None
        else:
            found = self._endpoints.begin(now, is_first=is_first, avoid=job.tried)
        if found is None:
            return None
        job.endpoint = found
        heapq.heappop(self._again)
        return job

    def _begin_next(self, now: float) -> Job | None:
        endpoint = self._endpoints.begin(now, is_first=self.num_in_flight == 0)
        if endpoint is None:
            return None
        batch = None
        try:
            batch = self._batches.next(endpoint.max_items)
        finally:
            if batch is None:
                endpoint.ended()
        return None if batch is None else Job(batch, endpoint)

    def wakes_at(self, now: float) -> float:
        """When something may be begun without an answer's coming, or the call's time will be over."""
        times = [
            self._deadline if now < self._deadline else float("inf")
        ]  # then the attempts in flight end by themselves
        if self._again and self._again[0][0] > now:
            times.append(self._again[0][0])
        if not self._batches.are_over or (self._again and self._again[0][0] <= now):  # an endpoint has no room
            times.append(self._endpoints.wakes_at(now))
        return min(times)

    def finished(self, job: Job, part: Part, seconds: float) -> None:
        """An attempt brought its answer."""
        assert job.endpoint is not None
        self.num_in_flight -= 1
        self._num_done += len(job.batch.items)
        job.endpoint.answered(seconds, is_usual=2 * len(job.batch.items) > self._preference.batch_size)
        asking.learn(self._task, job, part)

    def failed(self, job: Job, failure: Failure, now: float) -> None:
        """An attempt was in vain. Raises RequestFailed if no other one is made."""
        self.num_in_flight -= 1
        self._tell_endpoint(job, failure, now)
        job.note(failure)
        is_late = now >= self._deadline
        if not is_late and (self._asks_in_another_way(job, failure, now) or self._splits(job, failure, now)):
            return
        failure = asking.most_telling(job.refusal, failure)
        if is_late or not may_help(failure) or job.num_retries >= self._preference.max_retries:
            raise self._given_up(job, failure, is_late=is_late or failure.kind in _LATE)
        self._try_again(job, failure, now)

    def dropped(self, job: Job) -> None:
        """An attempt that was still in flight when the call ended."""
        assert job.endpoint is not None
        self.num_in_flight -= 1
        job.endpoint.ended()

    def check_deadline(self, now: float) -> None:
        """Raises DeadlineExceeded if the call's time is over and what is left waits to be sent."""
        if now < self._deadline or self.num_in_flight:
            return
        job = self._again[0][2] if self._again else None
        if job is None and (batch := self._batches.next(None)) is not None:
            job = Job(batch)
        if job is not None:
            raise self._given_up(job, Failure(Kind.TIMEOUT, "total_timeout_s is over"), is_late=True)

    def _tell_endpoint(self, job: Job, failure: Failure, now: float) -> None:
        endpoint = job.endpoint
        assert endpoint is not None
        is_own_timeout = failure.kind is Kind.TIMEOUT and job.deadline < self._deadline
        if failure.kind is Kind.CONNECTION or is_own_timeout:
            pause = self._preference.initial_backoff_ms / 1000
            endpoint.failed(now, self._chance.uniform(0.5, 1.0) * pause)
        elif failure.status in _TOO_BUSY:
            endpoint.refused()
        else:
            endpoint.ended()

    def _asks_in_another_way(self, job: Job, failure: Failure, now: float) -> bool:
        """Unless a way is known to work."""
        way = asking.next_way(self._task, job, failure)
        if way is None:
            return False
        job.refusal = asking.most_telling(job.refusal, failure)
        job.way, job.is_finding_way = way, True
        job.note_what_next("asked in another way")
        self._put_back(job, now)
        return True

    def _splits(self, job: Job, failure: Failure, now: float) -> bool:
        """A request with more than the server takes goes in halves, and those after it are smaller."""
        if self._task.is_whole or len(job.batch.items) < 2 or not asking.has_too_many_items(failure):
            return False
        assert job.endpoint is not None
        job.note_what_next("sent in halves")
        for half in job.batch.halves():
            job.endpoint.takes_fewer(len(half.items))
            self._put_back(job.with_batch(half), now)
        return True

    def _try_again(self, job: Job, failure: Failure, now: float) -> None:
        assert job.endpoint is not None
        job.is_finding_way = False
        job.tried.add(job.endpoint)
        wait = 0.0
        if not self._endpoints.others_work(job.tried):
            job.tried = {job.endpoint}
            initial = self._preference.initial_backoff_ms / 1000
            wait = seconds_to_wait(failure, job.num_retries, initial=initial, chance=self._chance)
        is_late = now + wait >= self._deadline
        if is_late or wait > self._preference.timeout_s:
            job.note_what_next(f"not tried again, for that would be after {wait:.3g} s")
            raise self._given_up(job, failure, is_late=is_late)
        job.num_retries += 1
        job.note_what_next(f"tried again after {wait:.3g} s")
        self._put_back(job, now + wait)

    def _put_back(self, job: Job, due: float) -> None:
        heapq.heappush(self._again, (due, next(self._count), job))

    def _given_up(self, job: Job, failure: Failure, *, is_late: bool) -> Exception:
        way = self._task.ways[job.way]
        situation = Situation(self._task.method, way.path, self._request_id, self._num_done, self._batches.total)
        return given_up(job, failure, situation, is_late=is_late)
