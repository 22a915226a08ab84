"""One attempt: sends a request, a second copy of it if no answer comes for long, and reads the first good answer.

The thread that sends also waits. Two copies race until the head of an answer has come; only then is the winner's body
read, so that rows are written into their array by one answer alone.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from embedline.client.answer import HttpAnswer
from embedline.client.connection import HttpConnection
from embedline.client.endpoints import Endpoint
from embedline.client.failure import Failure, Kind, refused
from embedline.client.pool import CallState, DeadlineWatch

_CONNECT_SECONDS = 10.0  # that one address may take to answer
_MAX_ERROR_BODY = 1 << 16  # bytes
T = TypeVar("T")


class HedgeBudget:
    """How many requests may be sent a second time because they take long: a share of all, and one at first, so that the
    budget works for few requests too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_requests = 0
        self._num_hedges = 0

    def count_request(self) -> None:
        with self._lock:
            self._num_requests += 1

    def take(self, share: float) -> bool:
        """Whether one more may be sent; if so it counts."""
        with self._lock:
            if share <= 0 or self._num_hedges >= max(1.0, share * self._num_requests):
                return False
            self._num_hedges += 1
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request that is sent."""

    method: str
    path: str  # below the base URL
    headers: Mapping[str, str]
    body: bytes | None
    deadline: float  # of this attempt; time.monotonic() seconds
    hedge_delay: float | None = None  # seconds
    hedge_share: float = 0.0  # of all requests, at most, that are sent twice


class _Copy:
    """A request under way on one connection."""

    def __init__(
        self,
        request: HttpRequest,
        endpoint: Endpoint,
        connection: HttpConnection,
        *,
        call: CallState,
        watch: DeadlineWatch,
    ) -> None:
        self.answer: HttpAnswer | None = None  # once its head has come
        self._request = request
        self._endpoint = endpoint
        self._connection = connection
        self._call = call
        self._watch = watch

    def receive(self) -> None:
        """Send the request and wait for a good head. Raises Failure."""
        request, origin = self._request, self._endpoint.origin
        self._watch.add(self._connection, request.deadline, self._call)
        if not self._connection.is_open:
            self._connection.open(max(0.001, min(_CONNECT_SECONDS, request.deadline - time.monotonic())))
        headers = {"host": origin.host_header, **request.headers}
        self._connection.send(request.method, origin.prefix + request.path, headers, request.body)
        self.answer = self._connection.answer()
        _check_status(self.answer)

    def abort(self) -> None:
        """End `receive`, now or as soon as it begins. From any thread."""
        self._connection.abort(Kind.ABORTED)

    def end(self) -> None:
        self._watch.remove(self._connection)
        is_kept = False
        if self.answer is not None:
            is_kept = self.answer.may_be_followed
            self.answer.close()
        self._endpoint.pool.give_back(self._connection, is_kept=is_kept)


class Race:
    """Between a copy and one that is made after `delay` seconds without a head: the first good head wins.

    A thread sends the second copy and waits for its head. So no server that is slow to connect, that sends half of a
    head or TLS's own messages alone, keeps the other copy waiting. The loser's connection is closed, which tells its
    server to drop the work.
    """

    def __init__(self, first: _Copy, delay: float, make_second: Callable[[], _Copy | None]) -> None:
        """`make_second` runs in another thread, and never after `run` has returned; None = there is to be no second."""
        self._first = first
        self._delay = delay
        self._make_second = make_second
        self._first_ended = threading.Event()
        self._lock = threading.Lock()
        self._second: _Copy | None = None
        self._winner: _Copy | None = None

    def run(self) -> _Copy:
        """The winner. Raises the first copy's Failure where there is none."""
        failure: Failure | None = None
        other = threading.Thread(target=self._run_second, name="embedline hedge", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system starts no thread: there is no second
            other.start()
        try:
            self._first.receive()
            self._finish(self._first)
        except Failure as error:  # the second goes on, if there is one by now
            failure = error
        except BaseException:
            self._finish(self._first)
            raise
        finally:
            self._first_ended.set()
            if other.ident is not None:
                other.join()
        if self._winner is None:
            assert failure is not None
            raise failure
        return self._winner

    def _run_second(self) -> None:
        if self._first_ended.wait(self._delay) or (second := self._make_second()) is None:
            return
        with self._lock:
            if self._winner is not None:
                return
            self._second = second
        with contextlib.suppress(Failure):
            second.receive()
            self._finish(second)

    def _finish(self, copy: _Copy) -> None:
        """The attempt wins unless the other one has."""
        with self._lock:
            if self._winner is not None:
                return
            self._winner = copy
        rival = self._second if copy is self._first else self._first
        if rival is not None:
            rival.abort()


class Sender:
    """Sends from any number of threads."""

    def __init__(self, watch: DeadlineWatch, hedges: HedgeBudget) -> None:
        self._watch = watch
        self._hedges = hedges

    def send(
        self,
        request: HttpRequest,
        read: Callable[[HttpAnswer], T],
        call: CallState,
        *,
        to: Endpoint,
        hedge_to: Endpoint,
    ) -> T:
        """Send a request; return what `read` makes of the answer. Raises Failure, and whatever `read` raises."""
        self._hedges.count_request()
        try:
            return self._send(request, read, call, to, hedge_to)
        except Failure as failure:
            if not failure.is_stale:
                raise
        return self._send(request, read, call, to, hedge_to, is_new=True)  # a kept connection was of no more use

    def _send(
        self,
        request: HttpRequest,
        read: Callable[[HttpAnswer], T],
        call: CallState,
        to: Endpoint,
        hedge_to: Endpoint,
        *,
        is_new: bool = False,
    ) -> T:
        on = partial(_Copy, request, call=call, watch=self._watch)
        winner = first = on(to, to.pool.take(request.deadline, call, is_new=is_new))
        copies = [first]

        def second() -> _Copy | None:
            connection = hedge_to.pool.try_take()
            if connection is None:
                return None
            copies.append(on(hedge_to, connection))
            return copies[-1] if self._hedges.take(request.hedge_share) else None

        try:
            if request.hedge_delay is None:
                first.receive()
            else:
                winner = Race(first, request.hedge_delay, second).run()
            assert winner.answer is not None
            return read(winner.answer)
        finally:
            for copy in copies:
                copy.end()


def _check_status(answer: HttpAnswer) -> None:
    """Raises Failure for anything but 2xx, and for a body that can't be read as it stands."""
    if not 200 <= answer.status < 300:
        body = answer.read_start(_MAX_ERROR_BODY)
        raise refused(answer.status, body, retry_after=answer.header("retry-after"), location=answer.header("location"))
    if (answer.header("content-encoding") or "identity").strip().lower() != "identity":
        raise Failure(Kind.ANSWER, "its body is compressed, which was not asked for")
