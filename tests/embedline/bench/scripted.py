"""A tiny HTTP server on the test's own event loop that answers as its script says."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence

from embedline.bench.options import Target

OK = b'{"object":"list","data":[],"model":"m","usage":{"prompt_tokens":7,"total_tokens":7}}'


def answer(body: bytes = OK, *, status: bytes = b"200 OK", headers: Sequence[bytes] = ()) -> bytes:
    """The bytes of an HTTP answer of known length."""
    lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Server:
    """Each request takes the next entry of the script, over and over: bytes are sent, None ends the connection
    without an answer, and an event is waited for before an answer is sent."""

    def __init__(self, script: Sequence[bytes | asyncio.Event | None]) -> None:
        self._script = itertools.cycle(script)
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        self.num_connections = 0
        self.most_in_flight = 0
        self._in_flight = 0
        self._arrived = asyncio.Condition()
        self._open: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}
        self.target = Target("127.0.0.1", 0, False, "")

    async def has_seen(self, num_in_flight: int) -> None:
        """Return once so many requests waited for their answers at the same time."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.most_in_flight >= num_in_flight)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._open[asyncio.current_task()] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                self._in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self._in_flight)
                async with self._arrived:
                    self._arrived.notify_all()
                entry = next(self._script)
                if isinstance(entry, asyncio.Event):
                    await entry.wait()
                    entry = answer()
                self._in_flight -= 1
                if entry is None:
                    break
                writer.write(entry)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def stop(self) -> None:
        """End every connection and wait until each has noticed."""
        for writer in self._open.values():
            writer.close()
        await asyncio.gather(*(task for task in self._open if task is not None))


@contextlib.asynccontextmanager
async def scripted(*script: bytes | asyncio.Event | None) -> AsyncIterator[Server]:
    """A server on a free port."""
    server = Server(script or (answer(),))
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.target = Target("127.0.0.1", listener.sockets[0].getsockname()[1], False, "")
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
