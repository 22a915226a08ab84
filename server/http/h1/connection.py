"""One connection, whatever its bytes, and one exchange on it.

A connection knows how long it waits for its client, when it reads, and how it ends. An exchange is a request and its
answer as ASGI has them: what the application receives, and what it sends.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import lru_cache
from http import HTTPStatus
from typing import cast

from server.http.body import WHOLE_BODY, ASGIApp, Message, Scope
from server.requests.row_memory import SMALL_BYTES

BYTES_PER_SECOND = 256 * 1024  # of an answer: who reads so much gets a second more to read the rest
MAX_UNTAKEN_BYTES = 64 * 1024  # of a body that the application has not received
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_WITHOUT_BODY = (204, 304)
_DAYS = b"Mon Tue Wed Thu Fri Sat Sun".split()
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
Header = tuple[bytes, bytes]
logger = logging.getLogger("embedline.server")


class AnswerClock:
    """Aborts a connection after some seconds, and one more for each BYTES_PER_SECOND bytes that its client has read.

    It runs while the client reads more slowly than the server writes, and stands while the server has nothing to write:
    an answer may be written for hours, line by line. What is left of the seconds is kept, however often the client
    reads a piece.
    """

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        """Must be made inside a running event loop."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._all_seconds = self._seconds = seconds  # left when it began to run
        self._timer: asyncio.TimerHandle | None = None  # while it runs

    def written(self) -> None:
        """Run: more waits to be read than the buffer should have."""
        self._num_unread = self._transport.get_write_buffer_size()
        if self._timer is None:
            self._ends = self._loop.time() + self._seconds
            self._timer = self._loop.call_at(self._ends, self._check)

    def stand(self) -> None:
        """Stand: the buffer has room again."""
        self.read()
        seconds = self._ends - self._loop.time()
        self.stop()
        self._seconds = seconds

    def read(self) -> None:
        """The client has read some of it."""
        num_unread = self._transport.get_write_buffer_size()
        self._ends += max(0, self._num_unread - num_unread) / BYTES_PER_SECOND
        self._num_unread = num_unread

    def stop(self) -> None:
        """The answer has left, or the connection is lost: the next one has all seconds."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._seconds = None, self._all_seconds

    def _check(self) -> None:
        self.read()
        if self._loop.time() < self._ends:
            self._timer = self._loop.call_at(self._ends, self._check)
        else:
            self._transport.abort()  # `close` would wait until the client has read all


class Awaited(Enum):
    """What a client has to send within a time."""

    REQUEST = auto()  # its first byte
    HEAD = auto()  # the rest of it
    REST = auto()  # of a request that is answered


class Connection(asyncio.Protocol):
    """Closes itself if its client neither sends nor reads.

    Each wait for the client only notes when it ends. One timer serves all of them: it is set anew when it has fired, or
    where a wait ends before it would fire.
    """

    head_seconds = 10.0  # for a whole head, from its first byte
    answer_seconds = 300.0  # for a client to read an answer that is larger than the buffer; AnswerClock adds to it
    rest_seconds = 30.0  # for what still comes of a request after its answer
    max_rest_bytes = 128 * 1024 * 1024  # of that
    transport: asyncio.Transport
    is_established = False  # it has its transport
    is_answering = False  # an answer has begun of which more has to be written

    def __init__(self, *, idle_seconds: float) -> None:
        """It may be without a request for `idle_seconds`. Must be made inside a running event loop."""
        self._loop = asyncio.get_running_loop()
        self.can_write = asyncio.Event()  # the buffer has room
        self.can_write.set()
        self.awaited: Awaited | None = None
        self._idle_seconds = idle_seconds
        self._wait_ends = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False  # nothing is parsed any more
        self._num_dropped = 0  # bytes that came after the answer to their request
        self._is_held = False  # enough has come that can't be parsed yet: reading is not resumed
        self._is_paused = False  # nothing is read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_established = True
        self.answer_clock = AnswerClock(self.transport, self.answer_seconds)
        self._wait_for(Awaited.REQUEST, min(self.head_seconds, self._idle_seconds))

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self.awaited = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.answer_clock.stop()
        self.can_write.set()

    # waiting for the client to send

    def _wait_for(self, awaited: Awaited, seconds: float) -> None:
        self.awaited = awaited
        self._wait_ends = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._wait_ends:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._wait_ends, self._check_wait)

    def _check_wait(self) -> None:
        self._timer = None
        if self.awaited is None:
            return
        if (seconds := self._wait_ends - self._loop.time()) > 0:
            self._wait_for(self.awaited, seconds)
        else:
            self._has_not_come(self.awaited)

    def _has_not_come(self, awaited: Awaited) -> None:
        """What was awaited has not come in time."""
        self._close()

    def _wait_for_rest(self) -> None:
        """The client may send what it has begun, within limits: then it reads its answer and keeps the connection."""
        self._num_dropped = 0
        self._wait_for(Awaited.REST, self.rest_seconds)

    def _drop(self, num_bytes: int) -> None:
        self._num_dropped += num_bytes
        if self._num_dropped > self.max_rest_bytes:
            self._close()

    # when to read

    def resume_reading(self) -> None:
        """Read on, unless enough has come."""
        if self._is_paused and not self._is_held:
            self._is_paused = False
            self.transport.resume_reading()

    # waiting for the client to read

    def pause_writing(self) -> None:
        self.can_write.clear()
        self.answer_clock.written()

    def resume_writing(self) -> None:
        self.can_write.set()
        if self.transport.is_closing():
            self.answer_clock.read()
        elif self.is_answering:
            self.answer_clock.stand()
        else:
            self.answer_clock.stop()

    def answered(self) -> None:
        """An answer is written."""
        self.is_answering = False
        if self.transport.is_closing():
            self._limit_unread()
        elif self.can_write.is_set():
            self.answer_clock.stop()

    # the end

    def close_after_rest(self) -> None:
        """Close, but first take what still comes: who sends into a closed connection may not see the answer."""
        self._is_over = True
        if self.transport.is_closing() or not self.transport.can_write_eof():
            self._close()
            return
        with contextlib.suppress(OSError):  # the client has left
            self.transport.write_eof()
        self._is_held = False
        self.resume_reading()
        self._wait_for_rest()

    def _close(self) -> None:
        self._is_over = True
        self.transport.close()
        self._limit_unread()

    def _limit_unread(self) -> None:
        """The connection closes when all is read; that may not take for ever either."""
        if self.transport.get_write_buffer_size():
            self.answer_clock.written()

    def eof_received(self) -> None:
        """The client sends no more, so the connection closes when this returns."""
        self._limit_unread()


class Exchange:
    """One request and its answer. The head of an answer leaves with the first piece of its body."""

    disconnected = False
    body: bytes | bytearray = b""  # what has come of it and was not received
    more_body = True
    response_started = False
    response_complete = False
    _has_news = False  # more of the body has come, or the connection or the answer has ended
    _news: asyncio.Event | None = None  # once somebody has waited for it
    _head = b""  # of an answer with a length, until it leaves
    _bytes_left: int | None = None  # of the answer's body; None = it is chunked

    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self.keep_alive = keep_alive
        self._connection = connection
        self._scope = scope
        self._expects_continue = expects_continue
        self._has_body = scope["method"] != "HEAD"

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer. A small body that has come with its head is in the scope, where it costs less
        than a message."""
        if not self.more_body and not self._expects_continue and len(self.body) <= SMALL_BYTES:
            self._scope[WHOLE_BODY] = bytes(self.body)
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("a handler failed")
        finally:
            if not self.response_complete and not self.disconnected:
                self._connection.transport.close()  # no client may wait for an answer that never comes
                self._connection.answered()  # nor may it leave what was written unread for ever

    def take(self, body: bytes) -> None:
        """More of the body has come. Nobody wants what comes after the answer."""
        if self.response_complete:
            return
        if not self.body:
            self.body = body  # usually all of it
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += body
        if not self._has_news:
            self.tell()

    def tell(self) -> None:
        """Tell who waits to receive that something has changed."""
        self._has_news = True
        if self._news is not None:
            self._news.set()

    async def receive(self) -> Message:
        """Receives a message of ASGI."""
        transport = self._connection.transport
        if self._expects_continue and not transport.is_closing():
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self.disconnected and not self.response_complete:
            self._connection.resume_reading()
            if not self._has_news:
                self._news = self._news or asyncio.Event()
                self._news.clear()
                await self._news.wait()
            self._has_news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Sends a message of ASGI. Waits while the client does not read. Raises RuntimeError for messages that make no
        answer."""
        can_write = self._connection.can_write
        if not can_write.is_set() and not self.disconnected:
            await can_write.wait()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and self.response_started and not self.response_complete:
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise RuntimeError(f"{message['type']} is out of turn")

    def _start(self, status: int, headers: Iterable[Header]) -> None:
        self.response_started = self._connection.is_answering = True
        self._expects_continue = False
        own = list(headers)
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
        self._head = head_of(status, own)
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
            self.tell()
            if not self.keep_alive and self.more_body:
                self._connection.close_after_rest()
            elif not self.keep_alive:
                self._connection.transport.close()
            self._connection.answered()

    def _flush(self, body: bytes | bytearray | memoryview) -> None:
        head, self._head = self._head, b""
        write = self._connection.transport.write
        if head and len(body) <= SMALL_BYTES:
            head, body = b"", b"".join((head, body))
        if head:
            write(head)
        if body:
            write(body)


def head_of(status: int, headers: Sequence[Header]) -> bytes:
    """The head of an answer that begins now. Raises RuntimeError for a header with a line break."""
    lines = b"\r\n".join([_STATUS_LINES[status] + _date_line(int(time.time())), *map(b": ".join, headers), b"\r\n"])
    num_lines = len(headers) + 3
    if lines.count(b"\n") != num_lines or lines.count(b"\r") != num_lines:
        raise RuntimeError("a header of the answer has a line break")
    return lines


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    # by hand: strftime writes the locale's names, and email.utils takes long to import
    then = time.gmtime(second)
    day, month = _DAYS[then.tm_wday], _MONTHS[then.tm_mon - 1]
    clock = b"%02d:%02d:%02d" % (then.tm_hour, then.tm_min, then.tm_sec)
    return b"date: %b, %02d %b %d %b GMT" % (day, then.tm_mday, month, then.tm_year, clock)
