"""The head of an answer. http.client takes the end of the connection for the end of the head; here it is told apart."""

import http.client
import io
import re
import socket
from typing import cast

_INTERIM = re.compile(rb"HTTP/1\.[0-9] 1(?!01)[0-9][0-9]\b")  # 101 is a final answer, to what is never asked
_MAX_INTERIM = 64
_MAX_LINES = 128  # of one interim answer
_LENGTH = re.compile(r"[0-9]{1,18}")


class CutHead(Exception):
    """The connection ended within the head."""


class WrongHead(Exception):
    """It is whole, and can't be of an answer."""


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
    """What comes from a socket."""

    is_in_head = True
    _num_lines = 0

    def makefile(self, _: str) -> "_Received":
        """For HTTPResponse, which asks a socket for its file."""
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
