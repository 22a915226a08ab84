"""One request and its answer on a connection, as ASGI has them: what the application receives, and what it sends.

In place of uvicorn's RequestResponseCycle, which writes head and body apart and searches each header with two regular
expressions: an answer costs it 20 µs more. The names that uvicorn's protocol reads are uvicorn's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus

from uvicorn.protocols.http.flow_control import FlowControl

from server.http.body import SMALL_BYTES, WHOLE_BODY, ASGIApp, Message, Scope

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_WITHOUT_BODY = (204, 304)

Header = tuple[bytes, bytes]

logger = logging.getLogger("embedline.server")


class Exchange:
    """`date` gives the date's header, and `on_response` is called when the answer is complete."""

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        date: Callable[[], Header],
        expects_continue: bool,
        keep_alive: bool,
        on_response: Callable[[], None],
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.message_event = asyncio.Event()  # more of the body has come, or the connection or the answer has ended
        self.disconnected = False
        self.keep_alive = keep_alive
        self.body = bytearray()  # what has come of it and was not received
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self.on_response = on_response
        self._date = date
        self._expects_continue = expects_continue
        self._head = b""  # of an answer with a length: it leaves with the first piece of the body
        self._bytes_left: int | None = None  # of the answer's body; None = it is chunked
        self._has_body = scope["method"] != "HEAD"

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer. Uvicorn's own `run_asgi` treats a cancelled handler as a failed one."""
        self.take_whole_body()
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:
            logger.exception("a handler failed")
        finally:
            if not self.response_complete and not self.disconnected:
                self.transport.close()  # no client may wait for an answer that never comes
            self.on_response = lambda: None  # breaks a cycle of references

    def take_whole_body(self) -> None:
        """Put a small body that has come with its head into the scope, where it costs less than a message."""
        if not self.more_body and not self._expects_continue and len(self.body) <= SMALL_BYTES:
            self.scope[WHOLE_BODY] = bytes(self.body)

    async def receive(self) -> Message:
        """See ASGI."""
        if self._expects_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """See ASGI. Waits while the client does not read. Raises RuntimeError for messages that make no answer."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and self.response_started and not self.response_complete:
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise RuntimeError(f"{message['type']} is out of turn")

    def _start(self, status: int, headers: Iterable[Header]) -> None:
        self.response_started = True
        self._expects_continue = False
        own = [self._date(), *headers]
        named = dict(own)  # names are in lower case, as ASGI says
        if b"close" in named.get(b"connection", b"").lower():
            self.keep_alive = False
        elif not self.keep_alive:
            own.append((b"connection", b"close"))
        if (length := named.get(b"content-length")) is not None:
            self._bytes_left = int(length) if self._has_body else 0
        elif not self._has_body or status in _WITHOUT_BODY:
            self._bytes_left = 0
        else:
            own.append((b"transfer-encoding", b"chunked"))
        lines = b"".join([b"%b: %b\r\n" % header for header in own])
        if lines.count(b"\n") != len(own) or lines.count(b"\r") != len(own):
            raise RuntimeError("a header of the answer has a line break")
        self._head = b"%b%b\r\n" % (_STATUS_LINES[status], lines)
        if self._bytes_left is None:  # a stream: its client learns at once that it was accepted
            self._flush(b"")

    def _write(self, body: bytes | bytearray | memoryview, *, is_last: bool) -> None:
        if not self._has_body:
            body = b""
        if self._bytes_left is None:
            chunk = b"".join((b"%x\r\n" % len(body), body, b"\r\n")) if body else b""
            self._flush(chunk + b"0\r\n\r\n" if is_last else chunk)
        else:
            self._bytes_left -= len(body)
            if self._bytes_left < 0 or (is_last and self._bytes_left):
                raise RuntimeError("the body of the answer is not as long as its head says")
            self._flush(body)
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _flush(self, body: bytes | bytearray | memoryview) -> None:
        head, self._head = self._head, b""
        if head and len(body) <= SMALL_BYTES:
            self.transport.write(b"".join((head, body)))
            return
        if head:
            self.transport.write(head)
        if body:
            self.transport.write(body)
