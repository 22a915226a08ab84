"""An ASGI application that sends each request to a server's Unix socket and gives back what it answers.

For the few requests that come through Serve's own proxy, which holds them while there is no replica. This module goes
to Ray's processes by value, so it imports nothing of ours.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httptools

_Message = Mapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_CHUNK = 1 << 18
# Of one connection alone.
_NOT_FORWARDED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"expect", b"upgrade", b"te"})


class Forward:
    """Of one replica."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        """One request, or Serve's words at start and end."""
        if scope["type"] == "lifespan":
            while (kind := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{kind}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            if await _send_request(scope, receive, writer):
                await _send_answer(reader, send)
        finally:
            writer.close()


async def _send_request(scope: Mapping[str, Any], receive: _Receive, writer: asyncio.StreamWriter) -> bool:
    """Whether the client is still there when it is sent."""
    headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_FORWARDED]
    is_chunked = b"content-length" not in dict(headers) and scope["method"] not in ("GET", "HEAD", "DELETE")
    headers += [(b"connection", b"close")] + [(b"transfer-encoding", b"chunked")] * is_chunked
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    lines = [b"%s: %s\r\n" % header for header in headers]
    writer.write(b"%s %s%s HTTP/1.1\r\n%s\r\n" % (scope["method"].encode(), scope["raw_path"], query, b"".join(lines)))
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return False
        if body := message.get("body", b""):
            writer.write(b"%x\r\n%s\r\n" % (len(body), body) if is_chunked else body)
            await writer.drain()
        if not message.get("more_body", False):
            writer.write(b"0\r\n\r\n" if is_chunked else b"")
            return True


async def _send_answer(reader: asyncio.StreamReader, send: _Send) -> None:
    answer = _Answer()
    while not answer.is_complete and (data := await reader.read(_CHUNK)):
        answer.parser.feed_data(data)
        while answer.messages:
            await send(answer.messages.pop(0))
    if not answer.is_complete:
        raise ConnectionError("the server has closed the connection")


class _Answer:
    """Makes ASGI's messages of an HTTP answer; the methods are httptools'."""

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.messages: list[dict[str, Any]] = []
        self.is_complete = False
        self._headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _NOT_FORWARDED:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        self.messages.append({"type": "http.response.start", "status": status, "headers": self._headers})

    def on_body(self, body: bytes) -> None:
        self.messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        self.messages.append({"type": "http.response.body", "body": b""})
        self.is_complete = True
