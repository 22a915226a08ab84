"""Uvicorn's HTTP parser, with limits on a request's head. Requests whose client has left are cancelled.

Limits on bodies are in server/http/body.py.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.dialects.writing.openai_shapes import openai_error
from server.requests.errors import BodyTooSlow, HeadTooLarge, MalformedBody, RequestError

MAX_HEAD_BYTES = 32 * 1024  # request line and headers; the parser alone would accept hundreds of megabytes
MAX_HEADERS = 100
_HEAD_SECONDS = 10.0  # for a whole head, from its first byte
_ANSWER_SECONDS = 300.0  # for a client to read an answer that is larger than the buffer
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}

OnRefused = Callable[[RequestError], None]

logger = logging.getLogger("embedline.server")


class Protocol(HttpToolsProtocol):
    """One connection.

    Cancels a request's task when its client leaves, closes the connection of a client that does not read, and declines
    upgrades. The parser takes all that follows an upgrade's head for another protocol, but a client may offer one and
    send a usual body, as Java's does with `Upgrade: h2c`. Such a request is parsed again without the offer.
    """

    on_refused: OnRefused
    head_seconds = _HEAD_SECONDS
    answer_seconds = _ANSWER_SECONDS
    _task: asyncio.Task[None] | None = None
    _head_bytes = 0  # of the head that is being received
    _is_in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None  # while the client reads more slowly than the server writes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        super().connection_made(transport)
        # uvicorn sets this timer only after an answer, so a connection that never sends anything would stay open
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
            return
        except HttpParserError as error:
            # an error of our own callbacks is the context of the parser's error
            self._refuse(error.__context__ if isinstance(error.__context__, RequestError) else _not_http())
            return
        if self._is_in_head:
            self._wait_for_head(len(data))

    def _wait_for_head(self, num_bytes: int) -> None:
        """The head is not complete: it may not become too long or take too long."""
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._head_too_slow)

    def _head_too_slow(self) -> None:
        self._refuse(BodyTooSlow(f"the request's head did not come within {self.head_seconds:g} seconds"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        headers = self.headers
        if len(headers) > MAX_HEADERS or len(self.url) + sum(len(n) + len(v) for n, v in headers) > MAX_HEAD_BYTES:
            raise _too_large()
        if self.parser.get_http_version() == "1.1" and [name for name, _ in headers].count(b"host") != 1:
            raise MalformedBody("a request must have one host header")  # RFC 9112, section 3.2
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            if not self.pipeline:
                # uvicorn pauses reading during a large body and resumes at the next `receive`, which never comes; then
                # nobody would see that the client has left
                self.flow.resume_reading()

    def _decline(self, rest: bytes) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(MalformedBody("this server is not a proxy"))
            return
        start = b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.data_received(b"".join([start, *headers, b"\r\n", rest]))

    def _refuse(self, error: RequestError) -> None:
        """Answer what never became a request, and close the connection."""
        answer = openai_error(error)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (answer.status, _REASONS[answer.status], len(answer.body)) + bytes(answer.body))
        self.transport.close()
        self.on_refused(error)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # a reference is kept in `tasks`, as uvicorn does: the loop holds tasks weakly
        self._task = self.loop.create_task(_run(cycle, app))
        self._task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._task)

    def pause_writing(self) -> None:
        super().pause_writing()
        # `close` would wait until the client has read all
        self._answer_timer = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()


async def _run(cycle: RequestResponseCycle, app: Any) -> None:
    """One request. Uvicorn's own `run_asgi` treats a cancelled handler as a failed one."""
    try:
        await app(cycle.scope, cycle.receive, cycle.send)
    except Exception:
        logger.exception("a handler failed")
    finally:
        if not cycle.response_complete:
            cycle.transport.close()  # no client may wait for an answer that never comes
        cycle.on_response = lambda: None  # breaks a cycle of references, as uvicorn does


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers")


def _not_http() -> MalformedBody:
    return MalformedBody("the request is not valid HTTP/1.1")
