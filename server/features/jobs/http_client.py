"""The client by which the jobs process asks its own server for what was accepted: async requests and lines of batches,
in the name of their API key, until there is an answer that counts.

`HttpConnection` is a small HTTP client of one connection to a Unix socket, one request at a time. It knows only what
our frontends answer: HTTP/1.1 with a content-length.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from server.features.jobs.pace import Pace, Postponed, SendQueue
from server.features.jobs.types import RetryPolicy

BUSY = frozenset({429, 503})  # the server had no room, and has computed nothing
FAILED_FOR_NOW = frozenset({424, 500, 502, 504})  # the next attempt may be better; 424 is TEI's word for 500
_MAX_LOST = 10  # connections that ended before a request's answer: its frontend died each time
_LOST_SECONDS = 0.2  # until the next is tried, doubling; restarting a frontend takes about a second
_MAX_HEAD_BYTES = 64 * 1024

Header = tuple[str, str]


class ConnectionLost(Exception):
    """The connection ended before the answer was whole. The request may have been computed."""


class AnswerTooLarge(Exception):
    """The answer has more bytes than the caller takes."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes


class HttpConnection:
    """Connects when it is first used, and again after it was lost. Cancelling a request closes it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, target: str, headers: Iterable[Header], body: bytes, *, max_bytes: int) -> HttpAnswer:
        """The answer to one request. Raises ConnectionLost and AnswerTooLarge.

        A connection that the server closed while it was idle is made again.
        """
        was_open = self._streams is not None
        try:
            return await self._exchange(target, headers, body, max_bytes)
        except _ClosedBeforeAnswer:
            if not was_open:
                raise
        return await self._exchange(target, headers, body, max_bytes)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, target: str, headers: Iterable[Header], body: bytes, max_bytes: int) -> HttpAnswer:
        is_whole = False
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path, limit=_MAX_HEAD_BYTES)
            reader, writer = self._streams
            await _write(writer, _head(target, headers, len(body)), body)
            answer, stays_open = await _answer(reader, max_bytes)
            is_whole = stays_open
            return answer
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise ConnectionLost(str(error)) from None
        finally:
            if not is_whole:
                self.close()


class _ClosedBeforeAnswer(ConnectionLost):
    """Not one byte of an answer came: most likely it was closed as idle."""


def _head(target: str, headers: Iterable[Header], num_bytes: int) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, f"content-length: {num_bytes}", "", ""]).encode()


async def _write(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    """Raises _ClosedBeforeAnswer."""
    writer.write(head)
    writer.write(body)
    try:
        await writer.drain()
    except OSError:
        raise _ClosedBeforeAnswer("closed before it was sent") from None


async def _answer(reader: asyncio.StreamReader, max_bytes: int) -> tuple[HttpAnswer, bool]:
    """The answer, and whether the connection stays open after it. Raises OSError, EOFError and ValueError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        raise _ClosedBeforeAnswer("closed before an answer") from None
    except ConnectionResetError:
        raise _ClosedBeforeAnswer("reset before an answer") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    length = int(headers["content-length"]) if "content-length" in headers else -1
    if length < 0:
        raise ValueError("an answer without its length")
    if length > max_bytes:
        raise AnswerTooLarge(f"the answer has {length} bytes")
    body = await reader.readexactly(length)
    return HttpAnswer(int(first.split()[1]), headers, body), headers.get("connection", "").lower() != "close"


class SelfClient:
    """A client for all requests, which share its pace and its connections."""

    def __init__(self, path: str, secret: str, pace: Pace) -> None:
        """`path` is that of the Unix socket; `secret` lets this process act for an API key."""
        self._path = path
        self._secret = secret
        self._pace = pace
        self._idle: list[HttpConnection] = []  # the latest used last; as many as were in flight at a time

    async def ask(
        self,
        queue: SendQueue,
        route: str,
        body: bytes,
        request_id: str,
        *,
        headers: Iterable[Header],
        retry: RetryPolicy,
        max_bytes: int,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> HttpAnswer:
        """The answer after all attempts; those that the server had no room for are not counted.

        Raises ConnectionLost, AnswerTooLarge, and Postponed: before the first attempt too where the server has no room
        and the request may not wait for it.
        """
        own = [("x-embedline-class", "bulk"), ("x-api-key", f"{self._secret}.{queue.owner}")]
        sent = [*headers, *own, ("x-request-id", request_id)]
        attempts, lost, delay = 0, 0, retry.initial_delay_ms / 1000
        while True:
            try:
                async with self._pace.turn(queue, has_begun=bool(attempts or lost)):
                    answer = await self._send(route, sent, body, max_bytes)
                    self._learn(queue.owner, answer)
            except ConnectionLost:
                lost += 1
                if lost == _MAX_LOST:
                    raise
                await asyncio.sleep(_LOST_SECONDS * 2 ** min(lost, 4))
                continue
            if answer.status in BUSY:
                if not (attempts or lost or may_wait()):
                    raise Postponed
                continue  # the pace waits
            attempts += 1
            if answer.status not in FAILED_FOR_NOW or attempts >= retry.max_attempts:
                return answer
            await asyncio.sleep(min(delay, retry.max_delay_ms / 1000))
            delay *= 2

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def _send(self, route: str, headers: Iterable[Header], body: bytes, max_bytes: int) -> HttpAnswer:
        connection = self._idle.pop() if self._idle else HttpConnection(self._path)
        try:
            return await connection.post(route, headers, body, max_bytes=max_bytes)
        finally:
            self._idle.append(connection)  # one that was lost connects again

    def _learn(self, owner: str, answer: HttpAnswer) -> None:
        if answer.status not in BUSY:
            return self._pace.answered(owner)
        retry_after = answer.headers.get("retry-after", "")
        self._pace.refused(owner, float(retry_after) if retry_after.isdigit() else 1.0)
