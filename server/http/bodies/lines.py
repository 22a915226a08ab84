"""Reads a body of lines without end: groups of lines that can be computed together, as they come."""

from collections import deque
from collections.abc import Callable, Mapping

from server.dialects.openai_lines import Line, read_line
from server.http.bodies.compression import coding_of
from server.http.body import BodyReader, Message, Receive, next_piece
from server.requests.errors import BodyTooSlow, InvalidRequest, NotReady, PayloadTooLarge, UnsupportedMedia

LINES = b"application/x-ndjson"
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
    """Of one body. `is_stopping` says whether the server is.

    num_answered  groups whose answers have left; who reads says so. A client may wait for them before it sends more.
    """

    def __init__(
        self, receive: Receive, bodies: BodyReader, *, max_lines: int, is_stopping: Callable[[], bool]
    ) -> None:
        self._receive = receive
        self._bodies = bodies
        self._max_lines = max_lines  # of a group
        self._is_stopping = is_stopping
        self.num_answered = 0
        self._num_groups = 0  # that were given away
        self._lines = deque[Line]()  # whole, and not in a group yet
        self._rest = bytearray()  # the beginning of a line
        self._num_lines = 0
        self._is_over = False

    async def group(self) -> list[Line] | None:
        """The next lines with the same options that have come, at least one; None at the end.

        A line that can't be read goes alone. Raises PayloadTooLarge, BodyTooSlow, ClientLeft, Overloaded and NotReady.
        """
        while not self._lines:
            if self._is_over:
                return None
            await self._read_on()
        group = [self._lines.popleft()]
        first, num_bytes = group[0], len(group[0].input)
        while self._lines and first.error is None and len(group) < self._max_lines:
            line = self._lines[0]
            num_bytes += len(line.input)
            if line.error is not None or line.options != first.options or num_bytes > _MAX_GROUP_BYTES:
                break
            group.append(self._lines.popleft())
        self._num_groups += 1
        return group

    async def _read_on(self) -> None:
        if self._is_stopping():
            raise NotReady("the server is stopping", retry_after=1.0)
        with self._bodies.whole(self._rest):
            message = await self._next_piece()
        self._is_over = not message.get("more_body", False)
        for data in filter(None, (line.strip() for line in self._split(message["body"]))):
            self._lines.append(read_line(data, self._num_lines))
            self._num_lines += 1

    async def _next_piece(self) -> Message:
        """Slow is only who sends nothing although all that came has long been answered."""
        while True:
            before = self.num_answered
            try:
                return await next_piece(self._receive)
            except BodyTooSlow:
                if before == self.num_answered == self._num_groups:
                    raise

    def _split(self, piece: bytes) -> list[bytes]:
        """The lines that end in a piece of the body, each piece looked at once. Raises PayloadTooLarge."""
        first, *others = piece.split(b"\n")
        self._rest += first
        whole = []
        if others or self._is_over:
            whole = [bytes(self._rest), *others]
            self._rest = bytearray(b"" if self._is_over else whole.pop())
        if max(map(len, (*whole, self._rest))) > MAX_LINE_BYTES:
            raise PayloadTooLarge(f"a line has more than {MAX_LINE_BYTES} bytes")
        return whole
