"""One connection beside its parser: its request and answer as ASGI has them, its clocks, and how it ends.

A connection is closed if its client neither sends nor reads. Parses nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.http.body import WHOLE_BODY, ASGIApp, Message, Scope
from server.requests.row_memory import SMALL_BYTES

BYTES_PER_SECOND = 256 * 1024  # of an answer: who reads so much gets a second more to read the rest
_HEAD_SECONDS = 10.0  # for a whole head, from its first byte
_ANSWER_SECONDS = 300.0  # for a client to read an answer that is larger than the buffer; AnswerClock adds to it
_REST_SECONDS = 30.0  # for what still comes of a request after its answer
_MAX_REST_BYTES = 128 * 1024 * 1024  # of that
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_WITHOUT_BODY = (204, 304)
Header = tuple[bytes, bytes]
logger = logging.getLogger("embedline.server")


class Exchange:
    """One request and its answer on a connection, as ASGI has them: what the application receives, and what it sends.

    In place of uvicorn's RequestResponseCycle, which writes head and body apart and searches each header with two
    regular expressions: an answer costs it 20 µs more. The names that uvicorn's protocol reads are uvicorn's. `date`
    gives the date's header, and `on_response` is called when the answer is complete.
    """

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
        """Receives a message of ASGI."""
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
        """Sends a message of ASGI. Waits while the client does not read. Raises RuntimeError for messages that make no
        answer."""
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


class AnswerClock:
    """Aborts a connection after some seconds, and one more for each BYTES_PER_SECOND bytes that its client has read.

    It runs while the client reads more slowly than the server writes, and stands while the server has nothing to write:
    an answer may be written for hours, line by line. What is left of the seconds is kept, however often the client
    reads a piece.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        """Begins at once. Must be made inside a running event loop."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds  # left when it began to run
        self._timer: asyncio.TimerHandle | None = None  # while it runs
        self.written()

    def written(self) -> None:
        """Run: more waits to be read than the buffer should have."""
        self._num_unread = self._transport.get_write_buffer_size()
        if self._timer is None:
            self._ends = self._loop.time() + self._seconds
            self._timer = self._loop.call_at(self._ends, self._check)

    def stand(self) -> None:
        """Stand: the buffer has room again."""
        self.read()
        self._seconds = self._ends - self._loop.time()
        self.stop()

    def read(self) -> None:
        """The client has read some of it."""
        num_unread = self._transport.get_write_buffer_size()
        self._ends += max(0, self._num_unread - num_unread) / BYTES_PER_SECOND
        self._num_unread = num_unread

    def stop(self) -> None:
        """The answer has left, or the connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self.read()
        if self._loop.time() < self._ends:
            self._timer = self._loop.call_at(self._ends, self._check)
        else:
            self._transport.abort()  # `close` would wait until the client has read all


class Flow(FlowControl):
    """Uvicorn's flow control, with one more reason to stop reading.

    Reading also stays paused while it is held, whoever resumes it: then enough has come that can't be parsed yet.
    """

    is_held = False

    def hold(self) -> None:
        """Stop reading."""
        self.is_held = True
        self.pause_reading()

    def release(self) -> None:
        """Read on."""
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """Resumes reading as uvicorn asks for it, unless it is held."""
        if self.read_paused and not self.is_held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """The clocks of one connection. Closes it if its client neither sends nor reads."""

    head_seconds = _HEAD_SECONDS
    answer_seconds = _ANSWER_SECONDS
    rest_seconds = _REST_SECONDS
    max_rest_bytes = _MAX_REST_BYTES
    flow: Flow
    cycle: Exchange  # type: ignore[assignment]  # ours in place of uvicorn's
    _is_over = False  # nothing is parsed any more
    _num_dropped = 0  # bytes that came after the answer to their request
    _timer: asyncio.TimerHandle | None = None  # for a head, or for what comes after an answer
    _answer_clock: AnswerClock | None = None  # while the client reads an answer more slowly than the server writes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's is
        super().connection_made(transport)
        self.flow = Flow(transport)
        # uvicorn sets this timer only after an answer, so a connection that never sends anything would stay open
        self._keep_alive(min(self.head_seconds, self.timeout_keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_over = True
        self._unset_keepalive_if_required()
        self._unset_timer()
        self._stop_answer_clock()

    # waiting for the client to send

    def _keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _wait_for_head(self, *, has_begun: bool) -> None:
        """Waits for the next head: no request is open. Empty lines count as the beginning of a head."""
        if not has_begun:
            self._keep_alive(self.timeout_keep_alive)
        elif self._timer is None:
            self._set_timer(self.head_seconds, self._head_too_slow)

    def _head_too_slow(self) -> None:
        raise NotImplementedError

    def _set_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        self._unset_timer()
        self._timer = self.loop.call_later(seconds, callback)

    def _unset_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # what still comes of a request after its answer

    def _wait_for_rest(self) -> None:
        """The client may send what it has begun, within limits: then it reads its answer and keeps the connection."""
        self._unset_keepalive_if_required()
        self._num_dropped = 0
        self._set_timer(self.rest_seconds, self._close)

    def _drop(self, num_bytes: int) -> None:
        self._num_dropped += num_bytes
        if self._num_dropped > self.max_rest_bytes:
            self._close()

    # waiting for the client to read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_reading_time()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_clock is not None:
            if self.transport.is_closing():
                self._answer_clock.read()
            elif self._is_answering():
                self._answer_clock.stand()
            else:
                self._stop_answer_clock()

    def _is_answering(self) -> bool:
        """Whether an answer has begun of which more has to be written."""
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _limit_reading_time(self) -> None:
        if self._answer_clock is None:
            self._answer_clock = AnswerClock(self.transport, self.answer_seconds)
        else:
            self._answer_clock.written()

    def _stop_answer_clock(self) -> None:
        if self._answer_clock is not None:
            self._answer_clock.stop()
            self._answer_clock = None

    # the end

    def _close_after_rest(self) -> None:
        """Close, but first take what still comes: who sends into a closed connection may not see the answer."""
        self._is_over = True
        if self.transport.is_closing() or not self.transport.can_write_eof():
            self._close()
            return
        with contextlib.suppress(OSError):  # the client has left
            self.transport.write_eof()
        self.flow.release()
        self._wait_for_rest()

    def _close(self) -> None:
        self._is_over = True
        self.transport.close()
        self._limit_unread()

    def _limit_unread(self) -> None:
        """The connection closes when all is read; that may not take for ever either."""
        if self.transport.get_write_buffer_size():
            self._limit_reading_time()

    def eof_received(self) -> None:
        """The client sends no more, so the connection closes when this returns."""
        self._limit_unread()

    def timeout_keep_alive_handler(self) -> None:
        """Closes the connection: nothing has come for so long."""
        self._close()
