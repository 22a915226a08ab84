"""A connection's requests: cut one at a time out of its bytes, parsed, and given to the application.

What a client sends ahead waits as bytes until the request before it is answered. So answers and refusals keep the order
of the requests, and what waits is bounded.
"""

import array
import asyncio
import contextlib
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import Any

from httptools import HttpParserError, HttpRequestParser

from server.http.body import WRITE_BUFFER_BYTES, ASGIApp
from server.http.h1.connection import MAX_UNTAKEN_BYTES, Awaited, Connection, Exchange, Header
from server.http.h1.framing import (
    MAX_HEAD_BYTES,
    ChunkedBody,
    checked_headers,
    end_of_head,
    not_http,
    path_and_query,
    refusal,
    with_host_of_target,
)
from server.requests.errors import BodyTooSlow, MalformedBody, RequestError

LAST_REQUEST_SECONDS = 0.5  # for a request that is on its way when the server stops
OnRefused = Callable[[RequestError], None]


class Connections:
    """The connections of a server, the oldest first; also those in the middle of a TLS handshake.

    leaving  tasks of requests that their connections keep no longer; the loop holds tasks weakly
    empty    there is none
    """

    def __init__(self, *, limit: int, on_number: Callable[[int], None], on_refused: OnRefused) -> None:
        """`on_number` is called with the number of connections when it changes."""
        self.on_refused = on_refused
        self.leaving: set[asyncio.Task[None]] = set()
        self.empty = asyncio.Event()
        self.empty.set()
        self.is_draining = False  # every answer closes its connection
        self.is_stopping = False
        self._by_age: dict[HttpProtocol, socket.socket] = {}
        self._limit = limit
        self._on_number = on_number

    def established(self) -> list["HttpProtocol"]:
        """Those whose handshake is done."""
        return [one for one in self._by_age if one.is_established]

    def tasks(self) -> set[asyncio.Task[None]]:
        """Of all requests that the application has not done with."""
        return {task for one in self._by_age if (task := one.open_task()) is not None} | self.leaving

    def opened(self, connection: "HttpProtocol", accepted: socket.socket) -> None:
        """Note a new connection. Where there is one too many, the oldest gives way that has no request, else that waits
        for its client."""
        self._by_age[connection] = accepted
        self.empty.clear()
        if len(self._by_age) > self._limit:
            *others, _ = self._by_age
            idle = (one for one in others if one.is_idle)
            waiting = (one for one in others if one.waits_for_client)
            self._end(next(idle, None) or next(waiting, None) or connection)
        self._on_number(len(self._by_age))

    def end_handshakes(self) -> None:
        """Close at once those that are in the middle of one."""
        for connection in [one for one in self._by_age if not one.is_established]:
            self._end(connection)

    def end_all(self) -> None:
        """Close all at once."""
        for connection in list(self._by_age):
            self._end(connection)

    def _end(self, connection: "HttpProtocol") -> None:
        """Close it at once; it counts no more."""
        accepted = self._by_age.pop(connection)
        if connection.is_established:
            connection.transport.abort()
            return
        with contextlib.suppress(OSError):  # the client has ended the handshake, too
            accepted.shutdown(socket.SHUT_RDWR)

    def closed(self, connection: "HttpProtocol") -> None:
        """Count the connection no more."""
        if self._by_age.pop(connection, None) is not None:
            self._on_number(len(self._by_age))
        if not self._by_age:
            self.empty.set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it is done."""
        self.leaving.add(task)
        task.add_done_callback(self.leaving.discard)


class _StopParsing(Exception):
    """The parser has met the next request in a piece of a chunked body, or, in a head, an offer to upgrade: it would
    take all that follows for another protocol."""


class HttpProtocol(Connection):
    """One connection. Cancels a request's task when its client leaves.

    It declines upgrades: a client may offer one and send a usual body, as Java's does with `Upgrade: h2c`. Such a
    request is parsed again without the offer.
    """

    _parser: HttpRequestParser

    def __init__(self, app: ASGIApp, connections: Connections, *, idle_seconds: float) -> None:
        """`idle_seconds` may pass between two requests."""
        super().__init__(idle_seconds=idle_seconds)
        self._app = app
        self._connections = connections
        self._scope: dict[str, Any] = {}  # what all requests of the connection have in their scopes
        self._exchange: Exchange | None = None  # the newest
        self._task: asyncio.Task[None] | None = None
        self._received = b""  # a head that is not whole, or requests that were sent ahead
        self._num_parsed = 0  # bytes of it that the parser has
        self._version = "1.1"  # of the newest head
        self._url = b""
        self._headers: list[Header] = []
        self._is_in_body = False  # the head of the newest request is complete, its body is not
        self._body_left = 0  # bytes of a body whose length was announced
        self._chunked: ChunkedBody | None = None
        self._next_slice: asyncio.Handle | None = None  # of a body of many small chunks; others have their turn first
        self._new_parser()

    def _new_parser(self) -> None:
        self._parser = HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows is never parsed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)  # as without TLS, where it would be eight times it
        address = transport.get_extra_info("sockname")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": address[:2] if isinstance(address, tuple) else (address, None),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "root_path": "",
        }
        if self._connections.is_stopping:  # a handshake was under way; its request comes now
            self._loop.call_later(LAST_REQUEST_SECONDS, self.close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._received = b""
        if self._exchange is not None:
            if not self._exchange.response_complete:
                self._exchange.disconnected = True
            self._exchange.tell()
        if (task := self.open_task()) is not None:
            task.cancel()
            self._connections.keep(task)
        # nothing may hold the connection in a circle
        del self._parser
        self._exchange = self._task = None
        self._connections.closed(self)

    # what has come

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            self._drop(len(data))
            return
        self._received = self._received[self._num_parsed :] + data if self._received else data
        self._num_parsed = 0
        self._read_on(has_begun=not self._is_in_body)

    def _read_on(self, *, has_begun: bool = False) -> None:
        """Parse what has come, up to the end of the current request, and wait for more where none is open.

        `has_begun` says that the next head has, if only with empty lines, which are not kept.
        """
        try:
            self._parse()
        except RequestError as error:
            self._refuse(error)
        if self._is_over:
            self._received, self._num_parsed = b"", 0
        num_ahead = len(self._received) - self._num_parsed
        self._is_held = not self._is_over and (self._next_slice is not None or num_ahead > MAX_HEAD_BYTES)
        num_untaken = len(self._exchange.body) if self._exchange and self._is_in_body and not self._is_answered() else 0
        if self._is_held or num_untaken > MAX_UNTAKEN_BYTES:
            if not self._is_paused:
                self._is_paused = True
                self.transport.pause_reading()
        else:
            self.resume_reading()
        if self._connections.is_draining:
            self.close_after_answer()
        if not self._is_over and not self._is_in_body and self._is_answered():
            self._wait_for_head(has_begun=has_begun or bool(self._received))

    def _parse(self) -> None:
        data, at = self._received, self._num_parsed
        while at < len(data) and not self._is_over:
            if self._is_in_body:
                at += self._feed_body(data, at)
                if self._is_in_body and self._chunked is not None and self._chunked.is_slice:
                    self._next_slice = self._next_slice or self._loop.call_soon(self._read_slice)
                    break
            elif not self._is_answered():
                break  # what follows waits
            elif data[at] in b"\r\n":
                at = len(data) - len(data[at:].lstrip(b"\r\n"))  # old clients send empty lines (RFC 9112, 2.2)
            else:
                end, self._version = end_of_head(data, at)
                if not end:
                    break
                if self._chunked is not None and self._chunked.trailers:
                    self._new_parser()  # the other one reads `connection: close` among them too
                self._chunked = None
                self._feed(data[at:end])
                at = end
        self._received, self._num_parsed = (data, at) if at < len(data) else (b"", 0)

    def _read_slice(self) -> None:
        self._next_slice = None
        if not self._is_over:
            self._read_on()

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
            if self._is_in_body:
                chunked.check_trailers()
        if self._is_in_body and self._is_answered():
            self._drop(len(piece))
        return len(piece)

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except HttpParserError as error:
            reason = error.__context__  # what our own callback has raised
            if not isinstance(reason, _StopParsing):
                raise (reason if isinstance(reason, RequestError) else not_http()) from None
            if self._chunked is None:
                self._decline()
            else:
                # where the next request begins is not known, so it is not read: its client sends it again
                assert self._exchange is not None
                self._is_over = True
                self._exchange.keep_alive = False
                if self._exchange.response_complete:
                    self.close_after_rest()

    def _decline(self) -> None:
        """Parse a head again without its offer to upgrade."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            raise MalformedBody("this server is not a proxy")
        start = b"%b %b HTTP/%b\r\n" % (method, self._url, self._version.encode())
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self._headers if name != b"upgrade"]
        self._new_parser()
        self._feed(b"".join([start, *headers, b"\r\n"]))

    # what the parser finds

    def on_message_begin(self) -> None:
        if self._chunked is not None:
            raise _StopParsing
        self._url, self._headers = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer."""
        (self._headers if self._chunked is None else self._chunked.trailers).append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, headers, version = self._parser, self._headers, self._version
        if parser.should_upgrade():
            raise _StopParsing
        fields = checked_headers(headers, version)
        if not self._url.startswith(b"/"):
            headers = with_host_of_target(self._url, headers)
        path, raw_path, query = path_and_query(self._url)
        scope = {
            **self._scope,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
        }
        if b"transfer-encoding" in fields:
            self._chunked = ChunkedBody()
        self._body_left = int(fields.get(b"content-length", 0))  # the parser has checked that it is a number
        self._is_in_body = True
        self.awaited = None
        if (before := self.open_task()) is not None:  # it has answered, but not ended
            self._connections.keep(before)
        keep_alive = version != "1.0" and parser.should_keep_alive()
        expects_continue = version != "1.0" and fields.get(b"expect", b"").lower() == b"100-continue"
        self._exchange = Exchange(self, scope, keep_alive=keep_alive, expects_continue=expects_continue)
        self._task = self._loop.create_task(self._exchange.run(self._app))

    def on_chunk_header(self) -> None:
        """The line with a chunk's length."""
        assert self._chunked is not None
        self._chunked.meets(data=False)

    def on_body(self, body: bytes) -> None:
        if self._chunked is not None:
            self._chunked.meets(data=True)
        assert self._exchange is not None
        self._exchange.take(body)

    def on_message_complete(self) -> None:
        assert self._exchange is not None
        if self._chunked is not None:
            self._chunked.check_trailers()
        self._is_in_body = False
        self.awaited = None
        self._exchange.more_body = False
        self._exchange.tell()

    # requests and answers

    def open_task(self) -> asyncio.Task[None] | None:
        """The task of the newest request, if it has not ended."""
        return None if self._task is None or self._task.done() else self._task

    def _is_answered(self) -> bool:
        return self._exchange is None or self._exchange.response_complete

    def answered(self) -> None:
        super().answered()
        if self.transport.is_closing():
            return
        self.resume_reading()
        if self._is_in_body:
            self._wait_for_rest()
        elif self._received:
            self._read_on()
        else:
            self._wait_for_head(has_begun=False)

    def _wait_for_head(self, *, has_begun: bool) -> None:
        """Waits for the next head: no request is open."""
        if not has_begun:
            self._wait_for(Awaited.REQUEST, self._idle_seconds)
        elif self.awaited is not Awaited.HEAD:
            self._wait_for(Awaited.HEAD, self.head_seconds)

    def _has_not_come(self, awaited: Awaited) -> None:
        if awaited is Awaited.HEAD and self._received:
            self._refuse(BodyTooSlow(f"the request's head did not come within {self.head_seconds:g} seconds"))
        else:
            self._close()  # of a head nothing but empty lines has come, so nobody waits for an answer

    def _refuse(self, error: RequestError) -> None:
        """Answer what never became a request, or whose body can't be read, and close the connection."""
        exchange = self._exchange
        if self._is_in_body and exchange is not None and self._task is not None:  # ends as if the client had left
            self._is_in_body = False
            exchange.disconnected = True
            self._task.cancel()
            if exchange.response_started:
                self._close()
                return
        self.transport.write(refusal(error))
        self._connections.on_refused(error)
        self.close_after_rest()

    # for the server

    def close_after_answer(self) -> None:
        """The request that is being answered is the last, unless others were sent ahead: they are answered too."""
        if self._exchange is not None and not self._exchange.response_started and not self._received:
            self._exchange.keep_alive = False

    def close_if_idle(self) -> None:
        """Close it unless something was received that is still to be answered, here or in the kernel."""
        if not self._is_answered() or self.transport.is_closing():
            return
        if self._is_over:  # what still comes is dropped
            self.transport.close()
            return
        if self._received:
            return
        num_unread = array.array("i", [0])  # bytes in the kernel
        fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, num_unread)
        if not num_unread[0]:
            self.transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its answer, and no answer has to leave yet. What still comes of an answered or
        refused request does not count, nor does a handshake, or a few such clients could take all connections."""
        is_open = not self._is_answered() and self._exchange is not None and not self._exchange.disconnected
        return not is_open and not self._has_unread()

    @property
    def waits_for_client(self) -> bool:
        """Whether the rest of a body has to come, or of an answer to be read."""
        return self._is_in_body or self._has_unread()

    def _has_unread(self) -> bool:
        return self.is_established and self.transport.get_write_buffer_size() > 0
