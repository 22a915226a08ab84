"""Keep-alive HTTP/1.1 connections to one server, each with at most one request under way.

This is cheaper than a client library. Answers are parsed as their bytes arrive, one at a time: by length, in chunks, or
until the connection ends.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

from embedline.bench.options import Target

_END_OF_HEAD = b"\r\n\r\n"
_MAX_HEAD = 1 << 16
_UNTIL_CLOSE = -1
_CHUNKED = -2


class BadAnswer(Exception):
    """The answer is not HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    head: bytes  # status line and header lines, in lower case
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may be used again."""
        return header(self.head, b"connection") != b"close" and self.head.startswith(b"http/1.1")


def header(head: bytes, name: bytes) -> bytes | None:
    """A header's value in a head in lower case."""
    at = head.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    begin = at + len(name) + 3
    end = head.find(b"\r\n", begin)
    return head[begin : end if end >= 0 else len(head)].strip()


class AnswerParser:
    """Parses one answer: feed it the bytes that were received since the request was sent."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head = b""
        self._length = 0  # of the body in bytes, or one of the two constants above; counts once there is a head
        self._chunks: list[bytes] = []

    def feed(self, data: bytes) -> HttpAnswer | None:
        """The answer once it is whole. Raises BadAnswer."""
        self._buffer += data
        while not self._head:
            if not self._read_head():
                return None
        if self._length == _CHUNKED:
            return self._read_chunks()
        if self._length == _UNTIL_CLOSE or len(self._buffer) < self._length:
            return None
        return self._finish(bytes(self._buffer[: self._length]))

    def feed_end(self) -> HttpAnswer | None:
        """The connection has ended: an answer of unknown length is whole with that."""
        if self._head and self._length == _UNTIL_CLOSE:
            return self._finish(bytes(self._buffer))
        return None

    def _read_head(self) -> bool:
        """Whether there was a whole head. Interim answers (100 Continue) are passed over."""
        end = self._buffer.find(_END_OF_HEAD)
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise BadAnswer("a head without end")
            return False
        head = bytes(self._buffer[:end]).lower()
        del self._buffer[: end + len(_END_OF_HEAD)]
        if not head.startswith(b"http/1.") or not head[9:12].isdigit():
            raise BadAnswer("no status line")
        if head[9:10] != b"1":
            self._head = head
            self._length = _body_length(head)
        return True

    def _read_chunks(self) -> HttpAnswer | None:
        """https://www.rfc-editor.org/rfc/rfc9112#section-7.1"""
        while (end := self._buffer.find(b"\r\n")) >= 0:
            size = _number(bytes(self._buffer[:end]).partition(b";")[0].strip(), base=16)
            needed = end + 2 + size + 2
            if size == 0:
                # after the last chunk come trailer lines, if any, and an empty line
                is_whole = self._buffer.find(_END_OF_HEAD, end) >= 0
                return self._finish(b"".join(self._chunks)) if is_whole else None
            if len(self._buffer) < needed:
                return None
            self._chunks.append(bytes(self._buffer[end + 2 : needed - 2]))
            del self._buffer[:needed]
        return None

    def _finish(self, body: bytes) -> HttpAnswer:
        return HttpAnswer(int(self._head[9:12]), self._head, body)


def _body_length(head: bytes) -> int:
    if head[9:12] in (b"204", b"304"):
        return 0
    if header(head, b"transfer-encoding") == b"chunked":
        return _CHUNKED
    length = header(head, b"content-length")
    return _UNTIL_CLOSE if length is None else _number(length, base=10)


def _number(digits: bytes, *, base: int) -> int:
    try:
        number = int(digits, base)
    except ValueError:
        raise BadAnswer("a length that is no number") from None
    if number < 0:
        raise BadAnswer("a negative length")
    return number


class ConnectionLost(Exception):
    """The connection could not be opened, or ended before the answer was whole."""


class TookTooLong(Exception):
    """No whole answer came in time."""


class HttpConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self._parser = AnswerParser()
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no common class
        self.is_open = True

    async def ask(self, request: bytes) -> HttpAnswer:
        """Send a whole request and wait for its answer. Raises ConnectionLost, TookTooLong, BadAnswer."""
        if not self.is_open:
            raise ConnectionLost
        self._parser = AnswerParser()
        self._waiting = self._loop.create_future()
        timer = self._loop.call_later(self._patience, self._fail, TookTooLong())
        try:
            self._transport.write(request)
            return await self._waiting
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            timer.cancel()
            self._waiting = None

    def close(self) -> None:
        """Close without a word to the server."""
        self.is_open = False
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            self.close()  # nothing was asked
            return
        try:
            answer = self._parser.feed(data)
        except BadAnswer as error:
            self._fail(error)
            return
        if answer is not None:
            self._finish(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._waiting is None or self._waiting.done():
            return
        answer = self._parser.feed_end() if exc is None else None
        if answer is None:
            self._fail(ConnectionLost())
        else:
            self._finish(answer)

    def _finish(self, answer: HttpAnswer) -> None:
        if not answer.keeps_alive:
            self.close()
        assert self._waiting is not None
        self._waiting.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class ConnectionPool:
    """Open connections that are free, and how to open more."""

    def __init__(self, target: Target, *, patience: float) -> None:
        self._target = target
        self._patience = patience
        self._tls = ssl.create_default_context() if target.is_tls else None
        self._free: list[HttpConnection] = []

    async def take(self) -> HttpConnection:
        """A free connection, or a new one. Raises ConnectionLost, TookTooLong."""
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        host, port = self._target.host, self._target.port
        opening = loop.create_connection(lambda: HttpConnection(self._patience), host, port, ssl=self._tls)
        try:
            _, connection = await asyncio.wait_for(opening, self._patience)
        except TimeoutError:
            raise TookTooLong from None
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
        return connection

    def give_back(self, connection: HttpConnection) -> None:
        """Free for the next request, if it is still open."""
        if connection.is_open:
            self._free.append(connection)

    def close(self) -> None:
        """Close the connections that no request uses."""
        for connection in self._free:
            connection.close()
        self._free.clear()
