"""Clients that never look whether the server is ready, as if no balancer stood before it, and count what they lose.

A request counts as accepted once its connection is established: `connect` has returned. From then on everything but a
whole answer with status 200 and the right row is a loss, on a connection that was used before, too, unless the answer
before said that it closes. A connection that is refused, or a handshake that gets no answer, loses nothing: the client
goes elsewhere, and here it tries again.
"""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType

from tests.server_e2e.expected import rows_of
from tests.server_e2e.running import PATIENCE

TEXT = "a query of a few words"
_ROW = rows_of([TEXT]).astype("<f4").tobytes()
_BODY = json.dumps({"input": TEXT, "encoding_format": "bytes"}).encode()
_HEAD = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n"
KEPT = _HEAD % len(_BODY) + b"\r\n" + _BODY
CLOSED = _HEAD % len(_BODY) + b"connection: close\r\n\r\n" + _BODY
_AGAIN_SECONDS = 0.01
_CONNECT_SECONDS = 10.0


class Lost(Exception):
    """An accepted request got no right answer."""


@dataclass
class Connection:
    """To the server; each request is sent whole."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> bool:
        """Whether the connection may be used again. Raises Lost."""
        try:
            self.writer.write(request)
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
            body = await self.reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Lost(type(error).__name__) from None
        if not lines[0].startswith(b"http/1.1 200"):
            raise Lost(f"{lines[0].decode()}: {body.decode()}")
        if body != _ROW:
            raise Lost("a wrong row")
        return b"connection: close" not in lines


@dataclass
class Load:
    """Half of the clients open a connection for each request, the others keep theirs; some of these pause."""

    port: int
    num_clients: int = 32
    outcomes: Counter[str] = field(default_factory=Counter)
    pauses: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def lost(self) -> dict[str, int]:
        """What accepted requests got instead of an answer, and how often."""
        return {what: count for what, count in self.outcomes.items() if what not in ("answered", "refused")}

    async def __aenter__(self) -> "Load":
        self._stopping = False
        self._news = asyncio.Condition()
        self._clients = [
            asyncio.create_task(self._open_each_time() if number % 2 else self._keep(pauses=number % 4 == 2))
            for number in range(self.num_clients)
        ]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Send nothing more, and wait for the answers that are due."""
        self._stopping = True
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._clients)

    async def wait_for(self, num_more: int) -> None:
        """Until so many more requests were answered."""
        goal = self.outcomes["answered"] + num_more
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: self.outcomes["answered"] >= goal)

    async def _open_each_time(self) -> None:
        while not self._stopping:
            if connection := await self._connected():
                await self._asked(connection, CLOSED)
                connection.writer.close()

    async def _keep(self, *, pauses: bool) -> None:
        connection: Connection | None = None
        while not self._stopping:
            connection = connection or await self._connected()
            if connection is not None and not await self._asked(connection, KEPT):
                connection.writer.close()
                connection = None
            if pauses:
                await asyncio.sleep(self.pauses.uniform(0, 0.02))
        if connection is not None:
            connection.writer.close()

    async def _connected(self) -> Connection | None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        except OSError:  # TimeoutError is one
            self.outcomes["refused"] += 1
            await asyncio.sleep(_AGAIN_SECONDS)
            return None

    async def _asked(self, connection: Connection, request: bytes) -> bool:
        """Whether the connection may be used again."""
        try:
            keeps, outcome = await connection.ask(request), "answered"
        except Lost as error:
            keeps, outcome = False, str(error)
        self.outcomes[outcome] += 1
        async with self._news:
            self._news.notify_all()
        return keeps
