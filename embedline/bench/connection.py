"""Keep-alive HTTP/1.1 connections to one server, each with at most one request under way.

This is cheaper than a client library. Answers are parsed as their bytes arrive, one at a time: by length, in chunks, or
until the connection ends.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

from embedline.bench.options import Target


class BadAnswer(Exception):
    """The answer is not HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: int
    headers: dict[bytes, bytes]  # by their names in lower case
    body: bytes
    keeps_alive: bool = True  # whether the connection may be used again


class AnswerParser:
    """Parses one answer: feed it the bytes that were received since the request was sent."""

    def __init__(self) -> None:
        import httptools  # here: benchmarks take percentiles of this package where it is not installed

        self._parser = httptools.HttpResponseParser(self)  # calls the methods below whose names begin with on_
        self._errors = (httptools.HttpParserError, httptools.HttpParserUpgrade)
        self._status = 0  # once there is a whole head
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._answer: HttpAnswer | None = None

    def feed(self, data: bytes) -> HttpAnswer | None:
        """The answer once it is whole. Raises BadAnswer."""
        try:
            self._parser.feed_data(data)
        except self._errors as error:
            if self._answer is None:
                raise BadAnswer(str(error)) from None
        return self._answer

    def feed_end(self) -> HttpAnswer | None:
        """The connection has ended: an answer of unknown length is whole with that."""
        if self._status and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self._finish()
        return self._answer

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._status // 100 == 1:  # interim, as 100 Continue: the answer follows
            self._status = 0
            self._headers.clear()
        elif self._answer is None:
            self._finish()

    def _finish(self) -> None:
        keeps_alive = self._parser.should_keep_alive()
        self._answer = HttpAnswer(self._status, self._headers, b"".join(self._body), keeps_alive)


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
