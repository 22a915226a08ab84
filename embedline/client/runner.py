"""Carries out one call: the caller's thread decides, threads of a pool send and receive.

All decisions are those of `scheduling.PendingBatches`, which belongs to the caller's thread alone. A thread of the pool
makes one attempt and puts its outcome into the call's queue. A call of one request makes it in the caller's thread:
another would cost time.
"""

import itertools
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from embedline.client.connection import REQUEST_ID_HEADER, attempt_id, new_call_id
from embedline.client.endpoints import Endpoints
from embedline.client.errors import Cancelled, EmbedlineError, NoThread
from embedline.client.failure import Failure, Kind
from embedline.client.pool import CallState, DeadlineWatch
from embedline.client.preference import RequestProcessingPreference
from embedline.client.scheduling import Batches, PendingBatch, PendingBatches
from embedline.client.sender import HttpRequest, Sender
from embedline.client.tasks import AnswerPart, Batch, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """One request's result."""

    batch: Batch
    part: AnswerPart[T]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    pending: PendingBatch
    seconds: float
    part: AnswerPart[T] | None = None
    error: BaseException | None = None


class Runner:
    """The parts that all calls of a client share."""

    def __init__(self, endpoints: Endpoints, watch: DeadlineWatch, sender: Sender, headers: Mapping[str, str]) -> None:
        self.endpoints = endpoints
        self.watch = watch
        self.sender = sender
        self.headers = headers  # of each request
        num_connections = sum(endpoint.max_connections for endpoint in endpoints.all)
        self.threads = ThreadPool(num_connections, name="embedline")
        self._under_way: set[_OneCall[Any]] = set()

    def close(self) -> None:
        """The calls that are under way are cancelled. After a fork it does nothing: all is the other process's."""
        if self.threads.was_forked:
            return
        for one in tuple(self._under_way):
            one.cancel("the client was closed")
        self.threads.close()
        self.watch.close()
        self.endpoints.close()

    def run(
        self, task: Task[T], batches: Batches, preference: RequestProcessingPreference
    ) -> Generator[Finished[T], None, None]:
        """Results as they come, in any order. Raises EmbedlineError after the last one that has come.

        Whoever stops early closes the iterator: that aborts what is in flight.
        """
        self.threads.claim()
        one = _OneCall(self, task, batches, preference)
        token = preference.cancel_token
        self._under_way.add(one)
        if token is not None:
            token.watch(one.cancel)
        try:
            yield from one.results()
        finally:
            self._under_way.discard(one)
            if token is not None:
                token.forget(one.cancel)

    def abort(self, call: CallState) -> None:
        """End the attempts of a call that have a connection, or wait for one. From any thread."""
        self.watch.abort(call)
        self.endpoints.wake_all()


class _OneCall(Generic[T]):
    """One call, in the caller's thread but for `attempt` and `cancel`."""

    def __init__(
        self, runner: Runner, task: Task[T], batches: Batches, preference: RequestProcessingPreference
    ) -> None:
        self._runner = runner
        self._task = task
        self._preference = preference
        self._call = CallState()
        self._why_cancelled = ""
        self._now = 0.0  # when it was last looked what is due
        self._outcomes: queue.SimpleQueue[_Outcome[T] | None] = queue.SimpleQueue()  # None = look what is to be done
        self._request_id = new_call_id()
        total = preference.total_timeout_s
        self._deadline = float("inf") if total is None else time.monotonic() + total
        self._in_threads: dict[PendingBatch, Future[None]] = {}  # attempts in flight, those that wait for a thread too
        self._pending = PendingBatches(
            task, batches, runner.endpoints, preference, request_id=self._request_id, deadline=self._deadline
        )

    def cancel(self, words: str = "the call was cancelled") -> None:
        """Cancel the call, from any thread."""
        self._why_cancelled = words
        self._runner.abort(self._call)
        self._outcomes.put(None)

    def results(self) -> Iterator[Finished[T]]:
        try:
            while self._begin_what_is_due():
                if (outcome := self._next_outcome()) is not None and (done := self._settle(outcome)) is not None:
                    yield done
        except EmbedlineError:
            yield from self._abort_and_wait()
            raise
        finally:
            for _ in self._abort_and_wait():
                pass

    def _begin_what_is_due(self) -> bool:
        """Start what is due. Returns whether anything is left to wait for."""
        if self._call.is_aborted:
            raise Cancelled(self._why_cancelled)
        self._now = now = time.monotonic()
        self._cancel_late(now)
        self._pending.check_deadline(now)
        for pending in self._pending.take(now):
            self._begin(pending)
        return not self._pending.are_over

    def _begin(self, pending: PendingBatch) -> None:
        """Make one attempt, in a thread unless it is all that there is to do."""
        if self._pending.is_last:
            self.attempt(pending)
            return
        try:
            self._in_threads[pending] = self._runner.threads.submit(partial(self.attempt, pending))
        except NoThread as error:
            self._outcomes.put(_Outcome(pending, 0.0, error=Failure(Kind.NO_THREAD, str(error))))
        except RuntimeError:
            self._pending.dropped(pending)
            if self._call.is_aborted:  # the client was closed meanwhile
                raise Cancelled(self._why_cancelled) from None
            raise

    def _cancel_late(self, now: float) -> None:
        """End the attempts that still wait for a thread although their time is over."""
        # they are in the order of their deadlines
        for pending in list(itertools.takewhile(lambda pending: pending.deadline <= now, self._in_threads)):
            if not self._in_threads[pending].cancel():
                continue
            del self._in_threads[pending]
            self._outcomes.put(_Outcome(pending, 0.0, error=Failure(Kind.NO_TURN, "all threads were in use")))

    def _next_outcome(self) -> _Outcome[T] | None:
        """An outcome; None where none came before there is something to begin."""
        # as of the last look at what is due; a later time could skip a deadline
        turn_ends = next((pending.deadline for pending in self._in_threads if pending.deadline > self._now), math.inf)
        seconds = max(0.0, min(self._pending.wakes_at(self._now), turn_ends) - time.monotonic())
        try:
            return self._outcomes.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except queue.Empty:
            return None

    def _settle(self, outcome: _Outcome[T]) -> Finished[T] | None:
        pending = outcome.pending
        self._in_threads.pop(pending, None)
        if outcome.part is not None:
            self._pending.finished(pending, outcome.part, outcome.seconds)
            return Finished(pending.batch, outcome.part, outcome.seconds)
        if self._call.is_aborted:
            self._pending.dropped(pending)
        elif isinstance(outcome.error, Failure):
            self._pending.failed(pending, outcome.error, time.monotonic())
        else:
            self._pending.dropped(pending)
            assert outcome.error is not None
            raise outcome.error
        return None

    def _abort_and_wait(self) -> Iterator[Finished[T]]:
        """Abort what is in flight and wait until it has ended: nothing writes into the result after the call. What had
        come before is a result still."""
        if self._pending.num_in_flight:
            self._runner.abort(self._call)
            self._cancel_late(float("inf"))
        while self._pending.num_in_flight:
            outcome = self._outcomes.get()
            if outcome is None:
                continue
            if outcome.part is None:
                self._pending.dropped(outcome.pending)
            else:
                self._pending.finished(outcome.pending, outcome.part, outcome.seconds)
                yield Finished(outcome.pending.batch, outcome.part, outcome.seconds)

    def attempt(self, pending: PendingBatch) -> None:
        """One attempt, whose outcome goes into the queue whatever happens."""
        began = time.monotonic()
        part: AnswerPart[T] | None = None
        error: BaseException | None = None
        try:
            part = self._send(pending)
        except BaseException as raised:  # it is raised in the caller's thread, or decides about the next attempt
            error = raised
        self._outcomes.put(_Outcome(pending, time.monotonic() - began, part, error))

    def _send(self, pending: PendingBatch) -> AnswerPart[T]:
        endpoint, way = pending.endpoint, self._task.ways[pending.way]
        assert endpoint is not None
        milliseconds = max(1, int(1000 * (pending.deadline - time.monotonic())))
        body = self._task.body(pending.batch.items, way)
        headers = {
            **self._runner.headers,
            "accept": way.accept,
            "request-timeout-ms": str(milliseconds),  # and no time of the clock: the server's may differ from ours
            REQUEST_ID_HEADER: attempt_id(self._request_id, pending.batch.start, len(pending.history)),
            **({} if body is None else {"content-type": "application/json"}),
            **{name.lower(): value for name, value in self._preference.extra_headers.items()},
        }
        request = HttpRequest(
            method=self._task.method,
            path=way.path,
            headers=headers,
            body=body,
            deadline=pending.deadline,
            hedge_delay=self._preference.hedge_delay,
            hedge_share=self._preference.hedge_budget_pct,
        )
        hedge_to = endpoint if pending.is_finding_way else self._runner.endpoints.for_hedge(endpoint, self._task.name)
        return self._runner.sender.send(
            request,
            lambda answer: self._task.read(pending.batch, way, answer),
            self._call,
            to=endpoint,
            hedge_to=hedge_to,
        )


class ThreadPool:
    """Threads that do a client's work. They are daemons: an interpreter that ends waits for no server.

    Up to `max_threads` of them, each started when all others are at work. The process that uses them first has them."""

    def __init__(self, max_threads: int, *, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None = end
        self._num_started = 0
        self._num_open = 0  # pieces of work that have not ended
        self._is_closed = False
        self._process: int | None = None

    @property
    def was_forked(self) -> bool:
        """Whether this process was forked from the one that has them."""
        return self._process not in (None, os.getpid())

    def claim(self) -> None:
        """Raises RuntimeError once closed, and in a process that was forked after the first use."""
        if self._process is None:
            self._process = os.getpid()
        if self.was_forked:
            raise RuntimeError("the client was used before this process was forked; make one in each process")
        if self._is_closed:
            raise RuntimeError("the client is closed")

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Do it once a thread is free. Raises as `claim`, and NoThread where there is none and none can be started."""
        self.claim()  # before the lock, which nobody releases after a fork
        future: Future[T] = Future()
        with self._lock:
            self.claim()
            is_one_more = self._num_open >= self._num_started < self._max_threads
            self._num_started += is_one_more
            self._num_open += 1
            self._work.put(partial(_carry_out, future, work))
        if is_one_more:
            self._start(future)
        return future

    def _start(self, future: "Future[Any]") -> None:
        """One more thread, without the lock, which the others need to go on. Where the system has none, they do it."""
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._num_started -= 1
                is_none_left = not self._num_started
            if is_none_left and future.cancel():  # or it would be done in vain once there is a thread again
                raise NoThread(f"the system starts no thread: {error}") from error

    def close(self) -> None:
        """The threads end after what was submitted until now. After a fork it does nothing: they are the other's."""
        if self.was_forked:
            return
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in range(self._num_started):
                    self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # nothing is kept alive while the thread waits
            with self._lock:
                self._num_open -= 1


def _carry_out(future: "Future[T]", work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # it is raised where the result is asked for
        future.set_exception(error)
        del future  # the error's traceback has this frame, and would keep what has the error
    else:
        future.set_result(result)
