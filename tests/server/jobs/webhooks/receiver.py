"""A receiver of webhooks on this machine, which answers as it is told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.server_e2e.running import PATIENCE

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
FAILED = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
SILENT = b""  # the request is read, and no answer ever comes


def redirect(location: str, status: int = 307) -> bytes:
    return f"HTTP/1.1 {status} Elsewhere\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()


@dataclass(frozen=True, slots=True)
class Received:
    """One POST as it came; names of headers in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """answers  one for each request, in order; the last is given again and again"""

    answers: Sequence[bytes]
    received: list[Received] = field(default_factory=list)
    port: int = 0
    open_now: int = 0  # requests without an answer
    most_open: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def until(self, count: int) -> None:
        """Waits until so many requests have come."""
        async with asyncio.timeout(PATIENCE):
            while len(self.received) < count:
                self.came.clear()
                await self.came.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers["content-length"]))
                self.received.append(Received(first.split()[1], headers, body))
                self.open_now += 1
                self.most_open = max(self.most_open, self.open_now)
                self.came.set()
                answer = self.answers[min(len(self.received), len(self.answers)) - 1]
                if not answer:
                    await reader.read()  # until the sender gives up
                writer.write(answer)
                await writer.drain()
                self.open_now -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(*answers: bytes) -> AsyncIterator[Receiver]:
    receiver = Receiver(answers)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
