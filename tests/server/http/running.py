"""A running HTTP server with a small application, and clients that send bytes to it."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from server.dialects.answers import Answer
from server.http.app import send_answer
from server.http.body import Receive, Scope, Send
from server.http.server import HttpServer
from server.requests.errors import RequestError

GET = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST /%b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"POST /%b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
Test = Callable[["Running"], Awaitable[None]]


class App:
    """Answers with the path, or at /echo with the body; fails at /fail, waits for `gate` everywhere but at /now."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.waiting: asyncio.Queue[None] = asyncio.Queue()
        self.cancelled: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()  # why
        self.reading = asyncio.Event()  # somebody's request to /echo
        self.paths: list[str] = []
        self.headers: list[tuple[bytes, bytes]] = []  # of the newest request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        self.headers = scope["headers"]
        if scope["path"] == "/fail":
            raise ZeroDivisionError("planted")
        if scope["path"] == "/cut":  # an answer that does not come to its end
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            await send({"type": "http.response.body", "body": b"begin", "more_body": True})
            return
        if scope["path"] == "/echo":
            self.reading.set()
            body = await whole_body(receive)
            self.waiting.put_nowait(None)
            await send_answer(send, Answer(200, [(b"content-length", b"%d" % len(body))], body))
            return
        try:
            if scope["path"] != "/now":
                if scope["method"] == "POST":
                    await whole_body(receive)
                self.waiting.put_nowait(None)
                await self.gate.wait()
        except asyncio.CancelledError as cancelled:
            self.cancelled.put_nowait(cancelled.args)
            if scope["path"] == "/wait":
                raise
            await send_answer(send, Answer(503, [(b"content-length", b"5")], b"sorry"))
            return
        body = scope["path"].encode()
        await send_answer(send, Answer(200, [(b"content-length", b"%d" % len(body))], body))


async def whole_body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    return body


class Client:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, *requests: bytes) -> None:
        self.writer.writelines(requests)

    async def head(self) -> bytes:
        """Of the next answer."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[int, bytes]:
        head = await self.head()
        lines = head.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        return await self._reader.read()


class Running:
    """A server and its application, on a free port."""

    def __init__(self) -> None:
        self.app = App()
        self.refused: list[RequestError] = []
        self.listen()

    def listen(self, *, max_connections: int = sys.maxsize) -> None:
        """Make the server, not yet started."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._address = listener.getsockname()
        self.server = HttpServer(self.app, [listener], on_refused=self.refused.append, max_connections=max_connections)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
