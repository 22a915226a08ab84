"""Reads a body of lines without end: groups of lines that can be computed together, as they come."""

import re
from collections.abc import Callable, Mapping

from server.dialects.openai import Line, read_line
from server.dialects.reading.json_body import BOM, check_utf_8
from server.http.bodies.compression import coding_of
from server.http.body import BodyReader, Message, Receive, next_piece
from server.requests.errors import BodyTooSlow, InvalidRequest, NotReady, PayloadTooLarge, UnsupportedMedia
from server.requests.time_slices import SharedSlice

LINES = b"application/x-ndjson"
_BLANK = re.compile(rb"\s*")
_UTF_8 = frozenset({b"utf-8", b"utf8"})
MAX_LINE_BYTES = 1 << 20
_MAX_GROUP_BYTES = 64 * 1024  # of more than one line


def has_lines(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request says that its body is lines."""
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == LINES


def check_head(headers: Mapping[bytes, bytes], http_version: str) -> None:
    """Of a request that has lines. Raises UnsupportedMedia, and InvalidRequest for HTTP/1.0, which has no chunks."""
    if http_version == "1.0":
        raise InvalidRequest("bodies of lines need HTTP/1.1: the answer's length is not known when it begins")
    if coding_of(headers) is not None:
        raise UnsupportedMedia("a body of lines must not be compressed", param="content-encoding")
    for parameter in headers[b"content-type"].split(b";")[1:]:
        name, _, value = parameter.partition(b"=")
        if name.strip().lower() == b"charset" and value.strip(b' \t"').lower() not in _UTF_8:
            raise UnsupportedMedia("charset of a body of lines must be utf-8, or be left out", param="content-type")


class LineReader:
    """Of one body. `is_stopping` says whether the server is; lines are taken out in slices of time.

    num_answered  groups whose answers have left; who reads says so. A client may wait for them before it sends more.
    """

    def __init__(
        self,
        receive: Receive,
        bodies: BodyReader,
        *,
        max_lines: int,
        is_stopping: Callable[[], bool],
        time_slice: SharedSlice,
    ) -> None:
        self._receive = receive
        self._bodies = bodies
        self._max_lines = max_lines  # of a group
        self._is_stopping = is_stopping
        self._time_slice = time_slice
        self.num_answered = 0
        self._num_groups = 0  # that were given away
        self._piece, self._at = b"", 0  # the newest piece of the body, and where its next line begins
        self._rest = bytearray()  # the beginning of a line, from earlier pieces; never blank
        self._line: Line | None = None  # the next one: read, and in no group yet
        self._is_long = False  # the line after it is too long
        self._num_lines = 0
        self._is_over = False

    async def group(self) -> list[Line] | None:
        """The next lines with the same options that have come, at least one; None at the end.

        Lines that can't be read go with their neighbours. What is raised comes after the lines before it:
        PayloadTooLarge, MalformedBody, BodyTooSlow, ClientLeft, Overloaded and NotReady.
        """
        group, options, num_bytes = list[Line](), None, 0
        while len(group) < self._max_lines:
            if (line := await self._next(waits=not group)) is None:
                break
            if line.error is None:
                num_bytes += len(line.input)
                if options is not None and (line.options != options or num_bytes > _MAX_GROUP_BYTES):
                    break
                options = line.options
            group.append(line)
            self._line = None
        self._num_groups += bool(group)
        return group or None

    async def _next(self, *, waits: bool) -> Line | None:
        """The next line, which stays the next; None at the end, and unless it `waits` where none has come."""
        while self._line is None:
            await self._time_slice.end_if_over()
            data = b"" if self._is_long else self._next_whole()
            self._is_long = self._is_long or max(len(data), len(self._rest)) > MAX_LINE_BYTES
            if not waits and (self._is_long or not data):
                return None
            if self._is_long:
                raise PayloadTooLarge(f"a line has more than {MAX_LINE_BYTES} bytes")
            if data:
                self._line = read_line(data, self._num_lines)
                self._num_lines += 1
            elif self._is_over:
                return None
            else:
                await self._read_on()
        return self._line

    def _next_whole(self) -> bytes:
        """What has come of the body up to the end of the next line that is not blank; b"" if none has ended."""
        data = b""
        while not data and self._at <= len(self._piece):
            if not self._rest:
                self._at = _BLANK.match(self._piece, self._at).end()  # type: ignore[union-attr]  # it matches anything
            stop = self._piece.find(b"\n", self._at)
            if stop < 0 and not self._is_over:
                self._rest += self._piece[self._at :]
                self._piece, self._at = b"", 0
                break
            stop = stop if stop >= 0 else len(self._piece)
            data = bytes(self._rest) + self._piece[self._at : stop]
            self._rest.clear()
            self._at = stop + 1
            if not self._num_lines:
                check_utf_8(data)
                data = data.removeprefix(BOM)
            data = data.strip()
        return data

    async def _read_on(self) -> None:
        if self._is_stopping():
            raise NotReady("the server is stopping", retry_after=1.0)
        await self._bodies.room(len(self._rest))
        with self._bodies.held(len(self._rest)):
            message = await self._next_piece()
        self._is_over = not message.get("more_body", False)
        self._piece, self._at = message["body"], 0

    async def _next_piece(self) -> Message:
        """Slow is only who sends nothing although all that came has long been answered."""
        while True:
            before = self.num_answered
            try:
                return await next_piece(self._receive)
            except BodyTooSlow:
                if before == self.num_answered == self._num_groups:
                    raise
