"""Uvicorn's HTTP parser, with limits on a request's head, and an end to requests whose client has left.

Bodies are limited by who reads them (server/http/body.py), since how much is allowed is not HTTP's business.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.requests.errors import BodyTooSlow, HeadTooLarge, MalformedBody, RequestError, openai_answer

MAX_HEAD_BYTES = 32 * 1024  # request line and headers; the parser itself would take hundreds of megabytes
MAX_HEADERS = 100
_HEAD_SECONDS = 10.0  # in which a head that has begun has to be whole
_ANSWER_SECONDS = 300.0  # in which answers have to be read that are more than a buffer holds
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}

OnRefused = Callable[[RequestError], None]

logger = logging.getLogger("embedline.server")


class Protocol(HttpToolsProtocol):
    """One connection.

    Cancels a request's task when its client leaves, cuts off who does not read, and declines upgrades: the parser
    takes what follows an upgrade's head for another protocol, but a client may offer one and send a usual body, as
    Java's does with `Upgrade: h2c`. Such a request is read again without the offer.
    """

    on_refused: OnRefused
    head_seconds = _HEAD_SECONDS
    answer_seconds = _ANSWER_SECONDS
    _task: asyncio.Task[None] | None = None
    _head_bytes = 0  # of the head that is being received
    _is_in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None  # while the client reads slower than is written

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        super().connection_made(transport)
        # a connection that never says anything is an idle one; uvicorn sets this timer after an answer only
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._decline(data[upgrade.args[0] :])
            return
        except HttpParserError as error:
            # what a callback of ours raised is the parser error's context
            self._refuse(error.__context__ if isinstance(error.__context__, RequestError) else _not_http())
            return
        if self._is_in_head:
            self._wait_for_head(len(data))

    def _wait_for_head(self, num_bytes: int) -> None:
        """The head is not whole yet: it may not become too long, nor take too long."""
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
            raise MalformedBody("a request needs one host header")  # RFC 9112, section 3.2
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            if not self.pipeline:
                # uvicorn stops reading over a large body and would go on at the next `receive`, which never comes: that
                # the client has left could not be seen
                self.flow.resume_reading()

    def _decline(self, rest: bytes) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(MalformedBody("this is no proxy"))
            return
        start = b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.data_received(b"".join([start, *headers, b"\r\n", rest]))

    def _refuse(self, error: RequestError) -> None:
        """Answer what never became a request, and hang up."""
        answer = openai_answer(error)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (answer.status, _REASONS[answer.status], len(answer.body)) + answer.body)
        self.transport.close()
        self.on_refused(error)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # a reference is kept in `tasks`, as uvicorn does: the loop holds tasks weakly
        self._task = self.loop.create_task(_run(cycle, app))
        self._task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._task)

    def pause_writing(self) -> None:
        super().pause_writing()
        # closing would wait until all is read
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
    """One request. Uvicorn's own `run_asgi` takes a cancelled handler for a failed one."""
    try:
        await app(cycle.scope, cycle.receive, cycle.send)
    except Exception:
        logger.exception("a handler failed")
    finally:
        if not cycle.response_complete:
            cycle.transport.close()  # nobody is left waiting for an answer
        cycle.on_response = lambda: None  # breaks a cycle of references, as uvicorn does


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head is over {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers")


def _not_http() -> MalformedBody:
    return MalformedBody("this is not valid HTTP/1.1")
