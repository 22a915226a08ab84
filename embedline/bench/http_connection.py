"""Keep-alive connections to one server, each with at most one request under way. Cheaper than a client library."""

import asyncio
import ssl
from typing import cast

from embedline.bench.http_answers import Answer, AnswerParser, BadAnswer
from embedline.bench.options import Target


class ConnectionLost(Exception):
    """It could not be opened, or ended before the answer was whole."""


class TookTooLong(Exception):
    """No whole answer came in time."""


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[Answer] | None = None
        self._parser = AnswerParser()
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no common class
        self.is_open = True

    async def ask(self, request: bytes) -> Answer:
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
        """Without a word to the server."""
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

    def _finish(self, answer: Answer) -> None:
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
        self._free: list[Connection] = []

    async def take(self) -> Connection:
        """A free connection, or a new one. Raises ConnectionLost, TookTooLong."""
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
        loop = asyncio.get_running_loop()
        host, port = self._target.host, self._target.port
        opening = loop.create_connection(lambda: Connection(self._patience), host, port, ssl=self._tls)
        try:
            _, connection = await asyncio.wait_for(opening, self._patience)
        except TimeoutError:
            raise TookTooLong from None
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from None
        return connection

    def give_back(self, connection: Connection) -> None:
        """Free for the next request, if it is still open."""
        if connection.is_open:
            self._free.append(connection)

    def close(self) -> None:
        """Close the connections that no request uses."""
        for connection in self._free:
            connection.close()
        self._free.clear()
