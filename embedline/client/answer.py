"""An answer over HTTP/1.1: its head, and a body whose bytes go from the socket to where they are wanted, uncopied.

http.client takes the end of the connection for the end of the head; here it is told apart.
"""

import contextlib
import http.client
import io
import re
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

from embedline.client.failure import Failure, Kind, message_in

try:  # floats in JSON are read six times as fast where it is installed
    from orjson import loads
except ImportError:
    from json import loads  # type: ignore[assignment]

MAX_BODY = 1 << 30  # bytes of an answer of any kind
_MASK = "***"
_PIECE = 1 << 20  # bytes; a longer body gets no room before it comes
_ERRORS = (OSError, http.client.HTTPException, ValueError)  # ValueError: a chunk's length that is no number
_INTERIM = re.compile(rb"HTTP/1\.[0-9] 1(?!01)[0-9][0-9]\b")  # 101 is a final answer, to what is never asked
_MAX_INTERIM = 64
_MAX_LINES = 128  # of one interim answer
_LENGTH = re.compile(r"[0-9]{1,18}")


class HttpAnswer:
    """One answer. The methods that read raise Failure."""

    def __init__(
        self, response: http.client.HTTPResponse, lost: Callable[[str], Failure], secrets: Sequence[str] = ()
    ) -> None:
        """`secrets` were in the request's head. A server may send them back; then no error shows them."""
        self._response = response
        self._secrets = secrets
        self._lost = lost  # makes the failure of a connection that ended
        self.status = response.status
        self.length = response.length  # of the body in bytes; None = it comes in chunks, or until the connection ends

    def header(self, name: str) -> str | None:
        value = self._response.getheader(name)
        return None if value is None else self._masked(value)

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    @property
    def content_type(self) -> str:
        """The type in lower case, without parameters; "" = there is none."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def may_be_followed(self) -> bool:
        """Whether the body was read to its end and the server keeps the connection. After 101 it speaks no HTTP."""
        return self.status >= 200 and self._response.isclosed() and not self._response.will_close

    @property
    def is_marked_whole(self) -> bool:
        """Whether the end of the body can be told from that of a connection that broke."""
        return self._response.chunked or self.length is not None

    def close(self) -> None:
        """Let go of the socket."""
        self._response.close()

    def read_into(self, view: memoryview) -> None:
        """Fills the view, a flat one of bytes. The body must be neither shorter nor longer."""
        if self.length is not None and self.length != len(view):
            raise Failure(Kind.ANSWER, f"its body has {self.length} bytes where its headers promise {len(view)}")
        self._fill(view)
        if self.length is None and self._read(1):
            raise Failure(Kind.ANSWER, f"its body is longer than the {len(view)} bytes that its headers promise")

    def read_all(self, most: int = MAX_BODY) -> bytearray:
        """The body, of at most so many bytes."""
        if self.length is not None and self.length > most:
            raise Failure(Kind.ANSWER, f"its body has {self.length} bytes, and at most {most} are read")
        if self.length is not None and self.length <= _PIECE:
            body = bytearray(self.length)
            self._fill(memoryview(body))
            return body
        body = bytearray()
        while piece := self._read(_PIECE):
            body += piece
            if len(body) > most:
                raise Failure(Kind.ANSWER, f"its body has more than the {most} bytes that are read")
        if self.length is not None and len(body) < self.length:
            raise self._lost(f"the answer ended after {len(body)} of {self.length} bytes")
        if not self.is_marked_whole and (failure := self._lost("the answer ended")).kind is not Kind.CONNECTION:
            raise failure  # our own timeout or cancellation looks like the end of such a body
        return body

    def read_start(self, most: int) -> bytes:
        """The first bytes of the body, without secrets; what does not come is left out."""
        body = b""
        with contextlib.suppress(Failure):
            while len(body) < most and (piece := self._read(most - len(body))):
                body += piece
        return self._masked(body.decode("latin-1")).encode("latin-1")

    def json(self, most: int = MAX_BODY) -> Any:
        """The value in a body of at most so many bytes."""
        try:
            return loads(self.read_all(most))
        except (ValueError, RecursionError):
            raise self.wrong("its body is no JSON") from None

    def results(self, *names: str, most: int) -> tuple[dict[str, Any], list[Any]]:
        """The object in a body of at most so many bytes, and the list that it has under the first of these names; where
        the body is a list, that one. An answer with an error in place of the list has its server's words."""
        found = self.json(most)
        content = found if isinstance(found, dict) else {}
        if content:
            found = next((content[name] for name in names if name in content), None)
        if isinstance(found, list):
            return content, found
        if words := message_in(content):
            raise Failure(Kind.ANSWER, f"HTTP {self.status} with an error: {self._masked(words)}")
        raise Failure(Kind.ANSWER, f"it has no list `{names[0]}`")

    def wrong(self, words: str) -> Failure:
        """The failure of a body that can't be what was asked for. One that nothing marks as whole may have been cut."""
        if not self.is_marked_whole:
            return self._lost(f"the connection ended, and {words}")
        return Failure(Kind.ANSWER, words)

    def _fill(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            try:
                count = self._response.readinto(view[filled:])
            except _ERRORS as error:
                raise self._lost(f"the connection broke after {filled} of {len(view)} bytes") from error
            if not count:
                raise self._lost(f"the answer ended after {filled} of {len(view)} bytes")
            filled += count

    def _read(self, most: int) -> bytes:
        try:
            if self._response.chunked:  # there `read` would take a chunk of -1 bytes for all that comes
                return self._response.read1(most)
            return self._response.read(most)
        except _ERRORS as error:
            raise self._lost("the answer ended in the middle") from error


class CutHead(Exception):
    """The connection ended within the head."""


class WrongHead(Exception):
    """The head is whole, and can't be of an answer."""


def read_head(opened: socket.socket, method: str) -> http.client.HTTPResponse:
    """The final answer to a request with this method. Raises CutHead, WrongHead, OSError and http.client's errors.

    Interim answers (1xx but 101) are passed over (RFC 9110, 15.2).
    """
    received = _Received(opened.makefile("rb", buffering=0))
    response = http.client.HTTPResponse(cast(socket.socket, received), method=method)
    try:
        response.begin()
        received.is_in_head = False
        _check_length(response)
    except BaseException:
        response.close()
        raise
    return response


def _check_length(response: http.client.HTTPResponse) -> None:
    lengths = set(response.headers.get_all("content-length", []))
    if len(lengths) > 1:
        raise WrongHead("it has several content-lengths")
    if not all(_LENGTH.fullmatch(length.strip()) for length in lengths):
        raise WrongHead("its content-length is no number")


class _Received(io.BufferedReader):
    """The bytes that come from a socket."""

    is_in_head = True
    _num_lines = 0

    def makefile(self, _: str) -> "_Received":
        """A file for HTTPResponse, which asks a socket for its file."""
        return self

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not self.is_in_head:
            return line
        if not self._num_lines:
            line = self._after_interim_answers(line, size)
        self._num_lines += 1
        if not line.endswith(b"\n") and len(line) != size and (line or self._num_lines > 1):
            raise CutHead  # but nothing at all is for http.client to say
        return line

    def _after_interim_answers(self, line: bytes, size: int | None) -> bytes:
        """The first line that begins no interim answer."""
        for _ in range(_MAX_INTERIM):
            if not _INTERIM.match(line):
                return line
            for _ in range(_MAX_LINES):
                self._num_lines += 1
                if (line := super().readline(size)) in (b"\r\n", b"\n", b""):
                    break
            else:
                raise WrongHead("an interim answer is too long")
            line = super().readline(size)
        raise WrongHead("it has too many interim answers")
