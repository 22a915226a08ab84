"""Uvicorn's HTTP protocol, one request at a time.

What a client sends ahead waits as bytes until the request before it is answered. So answers and refusals keep the order
of the requests, and what waits is bounded. The rules for heads, chunked bodies and time are in server/http/connection;
limits on whole bodies are in server/http/body.py.
"""

import asyncio
from collections.abc import Callable
from typing import cast
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from server.http.body import ASGIApp, Scope
from server.http.connection.chunked import ChunkedBody
from server.http.connection.clocks import Connection
from server.http.connection.exchange import Exchange, Header
from server.http.connection.head import (
    MAX_HEAD_BYTES,
    after_empty_lines,
    checked_headers,
    end_of_head,
    not_http,
    take_host_of_target,
)
from server.http.connection.refusal import refusal
from server.requests.errors import BodyTooSlow, MalformedBody, RequestError

OnRefused = Callable[[RequestError], None]


class _SentAhead(Exception):
    """The parser has met the next request in a piece of a chunked body."""


class Protocol(Connection):
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
        """As uvicorn's, which also asks each time whether the request is for a WebSocket."""
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
        """Where the next request begins is not known, so it is not read. Its client sends it again."""
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
