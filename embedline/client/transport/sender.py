"""One attempt: sends a request, a second copy of it if no answer comes for long, and reads the first good answer.

The thread that sends also waits. Two copies race until the head of an answer has come; only then is a winner chosen and
its body read, so that rows are written into their array by one answer alone. The loser's connection is closed, which
tells its server to drop the work.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from embedline.client.transport.answer import Answer
from embedline.client.transport.connection import Connection, readable
from embedline.client.transport.endpoint import Endpoint
from embedline.client.transport.failure import Failure, Kind, refused
from embedline.client.transport.hedge_budget import HedgeBudget
from embedline.client.transport.in_flight import Call, InFlight
from embedline.client.transport.pool import connect_seconds

_MAX_ERROR_BODY = 1 << 16  # bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is sent."""

    method: str
    path: str  # below the base URL
    headers: Mapping[str, str]
    body: bytes | None
    deadline: float  # of this attempt; time.monotonic() seconds
    hedge_delay: float | None = None  # seconds
    hedge_share: float = 0.0  # of all requests, at most, that are sent twice


class _Copy:
    """A request under way on one connection."""

    def __init__(self, endpoint: Endpoint, connection: Connection) -> None:
        self.endpoint = endpoint
        self.connection = connection
        self.answer: Answer | None = None

    def send(self, request: Request) -> None:
        origin = self.endpoint.origin
        if self.connection.fileno() < 0:
            self.connection.open(connect_seconds(request.deadline))
        headers = {"host": origin.host_header, **request.headers}
        self.connection.send(request.method, origin.prefix + request.path, headers, request.body)


class Sender:
    """Sends from any number of threads."""

    def __init__(self, in_flight: InFlight, hedges: HedgeBudget) -> None:
        self._in_flight = in_flight
        self._hedges = hedges

    def send(self, request: Request, read: Callable[[Answer], T], call: Call, *, to: Endpoint, hedge_to: Endpoint) -> T:
        """What `read` makes of the answer. Raises Failure, and whatever `read` raises."""
        self._hedges.count_request()
        try:
            return self._send(request, read, call, to, hedge_to)
        except Failure as failure:
            if not failure.is_stale:
                raise
        return self._send(request, read, call, to, hedge_to)  # the server had closed a kept connection

    def _send(self, request: Request, read: Callable[[Answer], T], call: Call, to: Endpoint, hedge_to: Endpoint) -> T:
        copies: list[_Copy] = []
        try:
            first = _Copy(to, to.pool.take(request.deadline, call))
            copies.append(first)
            self._start(first, request, call)
            self._hedge(copies, request, call, hedge_to)
            winner = self._first_good(copies)
            for loser in copies:
                if loser is not winner:
                    loser.connection.abort(Kind.ABORTED)
            assert winner.answer is not None
            return read(winner.answer)
        finally:
            for copy in copies:
                self._end(copy)

    def _start(self, copy: _Copy, request: Request, call: Call) -> None:
        self._in_flight.add(copy.connection, request.deadline, call)
        copy.send(request)

    def _hedge(self, copies: list[_Copy], request: Request, call: Call, to: Endpoint) -> None:
        """A second copy, if the first has no answer in time and the budget allows it. It fails in silence."""
        if request.hedge_delay is None or readable([copies[0].connection], request.hedge_delay):
            return
        connection = to.pool.try_take()
        if connection is None:
            return
        second = _Copy(to, connection)
        try:
            if self._hedges.take(request.hedge_share):
                self._start(second, request, call)
                copies.append(second)
        except Failure:
            pass
        finally:
            if second not in copies:
                self._end(second)

    def _first_good(self, copies: list[_Copy]) -> _Copy:
        """Waits for heads. A copy that fails is left to itself while another one is on its way."""
        waiting = list(copies)
        while True:
            ready = readable([copy.connection for copy in waiting], None)[0] if len(waiting) > 1 else None
            copy = next((one for one in waiting if one.connection is ready), waiting[0])
            try:
                copy.answer = copy.connection.answer()
                _check_status(copy.answer)
                return copy
            except Failure:
                if len(waiting) == 1:
                    raise
                waiting.remove(copy)

    def _end(self, copy: _Copy) -> None:
        self._in_flight.remove(copy.connection)
        is_kept = False
        if copy.answer is not None:
            is_kept = copy.answer.may_be_followed
            copy.answer.close()
        copy.endpoint.pool.give_back(copy.connection, is_kept=is_kept)


def _check_status(answer: Answer) -> None:
    """Raises Failure for anything but 2xx, and for a body that can't be read as it stands."""
    if not 200 <= answer.status < 300:
        body = answer.read_start(_MAX_ERROR_BODY)
        raise refused(answer.status, body, retry_after=answer.header("retry-after"), location=answer.header("location"))
    if (answer.header("content-encoding") or "identity").strip().lower() != "identity":
        raise Failure(Kind.ANSWER, "its body is compressed, which was not asked for")
