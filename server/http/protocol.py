"""HTTP/1.1 as bytes: uvicorn's protocol, one request at a time, with rules for heads, chunked bodies and refusals.

What a client sends ahead waits as bytes until the request before it is answered. So answers and refusals keep the order
of the requests, and what waits is bounded. How long a connection waits for its client is in connection.py; limits on
whole bodies are in body.py.
"""

import asyncio
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import cast
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from server.dialects.error_shapes import openai_error
from server.http.body import ASGIApp, Scope
from server.http.connection import Connection, Exchange, Header
from server.requests.errors import BodyTooSlow, HeadTooLarge, MalformedBody, RequestError

END_OF_HEAD = b"\r\n\r\n"
MAX_HEAD_BYTES = 32 * 1024  # request line and headers; the parser alone would accept hundreds of megabytes
MAX_HEADERS = 100
_MAX_CUTS = 1000  # of one body; JSON has no empty lines, and each cut costs a microsecond
_MAX_LINES = 2048  # of a piece; each chunk has two, and takes the parser about half a microsecond
_SLICE_BYTES = 8 * 1024  # of a piece that would have more lines
_METHOD = re.compile(rb"[A-Z]")  # how each method begins that the parser knows
_VERSIONS = (b" HTTP/1.1", b" HTTP/1.0")
_TARGET = re.compile(rb"[A-Za-z][\w+.-]*://([^/?#]*)")  # its scheme and host
_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[\w:.%~-]+\])(?::\d*)?")  # RFC 3986, 3.2.2, and a port
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
OnRefused = Callable[[RequestError], None]


def after_empty_lines(data: bytes, start: int) -> int:
    """The position where the request line begins. Clients may send empty lines before it (RFC 9112, 2.2)."""
    return len(data) - len(data[start:].lstrip(b"\r\n"))


def end_of_head(data: bytes, start: int) -> int:
    """The position where the head ends that begins at `start`; 0 if its end has not come. Raises HeadTooLarge and
    MalformedBody.

    The parser gets heads whole: then an endless one costs no more than the bytes that it has.
    """
    end = data.find(END_OF_HEAD, start) + len(END_OF_HEAD)
    if end < len(END_OF_HEAD):
        if len(data) - start > MAX_HEAD_BYTES:
            raise too_large()
        if not _METHOD.match(data, start):  # TLS, for example
            raise not_http()
        return 0
    if end - start > MAX_HEAD_BYTES:
        raise too_large()
    end_of_line = data.find(b"\r\n", start)
    if data.count(b" ", start, end_of_line) != 2 or not data.endswith(_VERSIONS, start, end_of_line):
        raise not_http()
    return end


def checked_headers(headers: Sequence[tuple[bytes, bytes]], version: Callable[[], str]) -> dict[bytes, bytes]:
    """The headers by name. Names are in lower case; `version` gives 1.0 or 1.1, and is called only where it matters.

    Raises HeadTooLarge and MalformedBody.
    """
    if len(headers) > MAX_HEADERS:
        raise too_large()
    fields = dict(headers)
    repeated = _repeated(headers) if len(fields) < len(headers) else frozenset()
    host = fields.get(b"host")
    if (host is None and version() == "1.1") or b"host" in repeated:
        raise MalformedBody("a request must have one host header")  # RFC 9112, section 3.2
    if host is not None and not _is_host(host):
        raise MalformedBody("the host header is not a host with or without a port")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (
        coding.strip().lower() != b"chunked" or b"transfer-encoding" in repeated or version() == "1.0"
    ):
        raise MalformedBody("transfer-encoding may only be chunked, and not in HTTP/1.0")
    return fields


def _repeated(headers: Sequence[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The names of headers that come more than once."""
    return frozenset(name for name, number in Counter(name for name, _ in headers).items() if number > 1)


def take_host_of_target(target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Puts the host of a target such as http://host/path, which outranks it, into the host header (RFC 9112, 3.2.2).

    Raises MalformedBody.
    """
    found = _TARGET.match(target)
    if found is None:
        return
    if not found[1] or not _is_host(found[1]):
        raise MalformedBody("the target has no host, or one that is not a host with or without a port")
    headers[:] = [*((name, value) for name, value in headers if name != b"host"), (b"host", found[1])]


@lru_cache(maxsize=16)  # clients say the same all the time
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def too_large() -> HeadTooLarge:
    """The refusal of a head, or of trailers."""
    return HeadTooLarge(f"the request's head has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} headers")


def not_http() -> MalformedBody:
    """The refusal of what the parser, or a rule here, does not take for HTTP."""
    return MalformedBody("the request is not valid HTTP/1.1")


class ChunkedBody:
    """One chunked body. The parser is given pieces, and tells when it meets a chunk's length or data.

    Trailers are fields that follow the last chunk. Nothing reads them, and they become no headers: they are counted
    against the limits on heads, and dropped.
    """

    def __init__(self) -> None:
        self.trailers: deque[tuple[bytes, bytes]] = deque(
            maxlen=MAX_HEADERS + 1
        )  # enough to see that they are too many
        self._num_bytes = 0  # up to the end of the piece that the parser has
        self._last = b""  # bytes of the pieces before, in which the end may have begun
        self._num_cuts = 0
        self.is_slice = False  # the newest piece was cut because of its many chunks; the rest is for a later turn
        self._trailers_after = math.inf  # the end of the piece with the length after which no data has come yet

    def piece(self, data: bytes, start: int) -> bytes:
        """The bytes that the parser gets next. A body ends with an empty line, so no piece goes on after one.

        After many empty lines no more are looked for, and a piece may have a part of the next request. Many small
        chunks come in slices: the parser would hold the event loop until it has all 40,000 of a read.
        """
        stop = len(data)
        if data.count(b"\r", start) > _MAX_LINES:  # the parser accepts no other end of a line
            stop = min(stop, start + _SLICE_BYTES)
        self.is_slice = stop < len(data)
        end = self._find_end(data, start, stop) if self._num_cuts < _MAX_CUTS else stop
        piece = data[start:end]
        self._last = (self._last + piece[1 - len(END_OF_HEAD) :])[1 - len(END_OF_HEAD) :]
        self._num_bytes += len(piece)
        return piece

    def _find_end(self, data: bytes, start: int, stop: int) -> int:
        reach = len(END_OF_HEAD) - 1
        begun = (self._last + data[start : start + reach]).find(END_OF_HEAD)
        found = start - len(self._last) + begun if begun >= 0 else data.find(END_OF_HEAD, start, stop)
        if found < 0 and begun < 0:
            return stop
        self._num_cuts += 1
        return found + len(END_OF_HEAD)

    def meets_length(self) -> None:
        """The parser is past the line with a chunk's length. If it was the last chunk's, trailers may follow."""
        self._trailers_after = self._num_bytes

    def meets_data(self) -> None:
        """The chunk was not the last."""
        self._trailers_after = math.inf

    def check_trailers(self) -> None:
        """Raises HeadTooLarge."""
        num_bytes = sum(len(name) + len(value) for name, value in self.trailers)
        is_long = max(num_bytes, self._num_bytes - self._trailers_after) > MAX_HEAD_BYTES
        if is_long or len(self.trailers) > MAX_HEADERS:
            raise too_large()


def refusal(error: RequestError, *headers: tuple[bytes, bytes]) -> bytes:
    """The whole answer to what never became a request. The connection closes after it.

    It has OpenAI's shape: its route is not known, so its dialect isn't either.
    """
    answer = openai_error(error)
    lines = [b"HTTP/1.1 %d %b" % (answer.status, _REASONS[answer.status])]
    length = (b"content-length", b"%d" % len(answer.body))
    lines += [b"%b: %b" % header for header in (*headers, *answer.headers, length)]
    if not any(name == b"connection" for name, _ in answer.headers):
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", bytes(answer.body)])


class _SentAhead(Exception):
    """The parser has met the next request in a piece of a chunked body."""


class HttpProtocol(Connection):
    """One connection.

    Cancels a request's task when its client leaves, closes the connection of a client that does not read, and declines
    upgrades. The parser takes all that follows an upgrade's head for another protocol, but a client may offer one and
    send a usual body, as Java's does with `Upgrade: h2c`. Such a request is parsed again without the offer.
    """

    on_refused: OnRefused
    date: Callable[[], Header]
    _task: asyncio.Task[None] | None = None
    _received = b""  # a head that is not whole, or requests that were sent ahead
    _num_parsed = 0  # bytes of it that the parser has
    _is_in_body = False  # the head of the current request is complete, its body is not
    _body_left = 0  # bytes of a body whose length was announced
    _chunked: ChunkedBody | None = None
    _next_slice: asyncio.Handle | None = None  # of a body of many small chunks; other connections have their turn first

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_over:
            self._drop(len(data))
            return
        was_in_body = self._is_in_body
        self._received = self._received[self._num_parsed :] + data
        self._num_parsed = 0
        self._read_on()
        if self._is_idle():
            self._wait_for_head(has_begun=bool(self._received) or not was_in_body)

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_idle(self) -> bool:
        return self._is_answered() and not self._is_in_body and not self._is_over

    def _read_on(self) -> None:
        """Parse what has come, up to the end of the current request."""
        try:
            self._parse()
        except RequestError as error:
            self._refuse(error)
        if self._is_over:
            self._received, self._num_parsed = b"", 0
        elif self._next_slice is not None or len(self._received) - self._num_parsed > MAX_HEAD_BYTES:
            self.flow.hold()
        elif self.flow.is_held:
            self.flow.release()
            if self._is_in_body and len(self.cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()  # until the handler has taken what has come

    def _parse(self) -> None:
        data, at = self._received, self._num_parsed
        while at < len(data) and not self._is_over:
            if self._is_in_body:
                at += self._feed_body(data, at)
                if self._is_in_body and self._chunked is not None and self._chunked.is_slice:
                    self._next_slice = self._next_slice or self.loop.call_soon(self._read_slice)
                    break
            elif not self._is_answered():
                break  # what follows waits
            else:
                if data[at] in b"\r\n":
                    at = after_empty_lines(data, at)
                    continue
                end = end_of_head(data, at)
                if not end:
                    break
                if self._chunked is not None and self._chunked.trailers:
                    self.parser = HttpRequestParser(self)  # the other one reads `connection: close` among them too
                self._chunked = None
                self._feed(data[at:end])
                at = end
        self._received, self._num_parsed = (data, at) if at < len(data) else (b"", 0)

    def _read_slice(self) -> None:
        """Go on with a body of many small chunks."""
        self._next_slice = None
        if self._is_over:
            return
        self._unset_keepalive_if_required()
        self._read_on()
        if self._is_idle():
            self._wait_for_head(has_begun=bool(self._received))

    def _feed_body(self, data: bytes, start: int) -> int:
        """Give the parser a piece of the body; the piece's length."""
        chunked = self._chunked
        if chunked is None:
            piece = data[start : start + self._body_left]
            self._body_left -= len(piece)
            self._feed(piece)
        else:
            piece = chunked.piece(data, start)
            self._feed(piece)
            if self.scope is not self.cycle.scope:
                self._end_after_answer()
            elif self._is_in_body:
                chunked.check_trailers()
        if self._is_in_body and self.cycle.response_complete:
            self._drop(len(piece))
        return len(piece)

    def _feed(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except HttpParserUpgrade:
            self._decline()
        except HttpParserError as error:
            # an error of our own callbacks is the context of the parser's error
            reason = error.__context__
            if not isinstance(reason, _SentAhead):
                raise (reason if isinstance(reason, RequestError) else not_http()) from None

    def _decline(self) -> None:
        """Parse a head again without its offer to upgrade."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise MalformedBody("this server is not a proxy")
        start = b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self._feed(b"".join([start, *headers, b"\r\n"]))

    # what the parser finds

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._chunked is not None:
            raise _SentAhead
        if self.parser.should_upgrade():
            return
        fields = checked_headers(self.headers, self.parser.get_http_version)
        if not self.url.startswith(b"/"):
            take_host_of_target(self.url, self.headers)
        if b"transfer-encoding" in fields:
            self._chunked = ChunkedBody()
            self.headers = cast(list[tuple[bytes, bytes]], self._chunked.trailers)
        self._body_left = int(fields.get(b"content-length", 0))  # the parser has checked that it is a number
        if b"expect" in fields and self.parser.get_http_version() == "1.1":
            self.expect_100_continue = fields[b"expect"].lower() == b"100-continue"
        if self._timer is not None:
            self._unset_timer()
        self._is_in_body = True
        self._start(self._new_exchange())

    def _new_exchange(self) -> Exchange:
        target, version = parse_url(self.url), self.parser.get_http_version()
        path: str = target.path.decode("ascii")
        self.scope["method"] = self.parser.get_method().decode("ascii")
        self.scope["http_version"] = version
        self.scope["path"] = unquote(path) if "%" in path else path
        self.scope["raw_path"] = target.path
        self.scope["query_string"] = target.query or b""
        return Exchange(
            cast(Scope, self.scope),
            self.transport,
            self.flow,
            date=self.date,
            expects_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )

    def on_chunk_header(self) -> None:
        """The line with a chunk's length."""
        assert self._chunked is not None
        self._chunked.meets_length()

    def on_body(self, body: bytes) -> None:
        """Does what uvicorn's method does, which also asks each time whether the request is for a WebSocket."""
        if self._chunked is not None:
            self._chunked.meets_data()
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        if self._chunked is not None:
            self._chunked.check_trailers()
        self.cycle.more_body = False
        self.cycle.message_event.set()
        self._is_in_body = False
        if self._timer is not None:
            self._unset_timer()
        # uvicorn pauses reading during a large body and resumes at the next `receive`, which never comes; then nobody
        # would see that the client has left
        self.flow.resume_reading()

    # requests and answers

    def _start(self, exchange: Exchange) -> None:
        self.cycle = exchange
        # a reference is kept in `tasks`, as uvicorn does: the loop holds tasks weakly
        self._task = self.loop.create_task(exchange.run(cast(ASGIApp, self.app)))
        self._task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._task)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._limit_unread()
            return
        if self._answer_clock is not None and not self.flow.write_paused:
            self._stop_answer_clock()
        if self._is_in_body:
            self._wait_for_rest()
        elif self._received:
            self._unset_keepalive_if_required()
            self._read_on()
            if self._is_idle():
                self._wait_for_head(has_begun=bool(self._received))

    def _refuse(self, error: RequestError) -> None:
        """Answer what never became a request, or whose body can't be read, and close the connection."""
        if self._is_in_body:
            is_answered = self.cycle.response_started
            self._abandon()
            if is_answered:
                self._close()
                return
        self.transport.write(refusal(error, self.date()))
        self.on_refused(error)
        self._close_after_rest()

    def _abandon(self) -> None:
        """End the current request as if its client had left."""
        self._is_in_body = False
        self.cycle.disconnected = True
        if self._task is not None:
            self._task.cancel()

    def _end_after_answer(self) -> None:
        """Ends the connection: where the next request begins is not known, so it is not read. Its client sends it
        again."""
        self._is_over = True
        self.cycle.keep_alive = False
        if self.cycle.response_complete:
            self._close_after_rest()

    def _head_too_slow(self) -> None:
        if self._received:
            self._refuse(BodyTooSlow(f"the request's head did not come within {self.head_seconds:g} seconds"))
        else:
            self._close()  # nothing but empty lines has come, so nobody waits for an answer

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._received = b""
        if self._task is not None and not self._task.done():
            self._task.cancel()
