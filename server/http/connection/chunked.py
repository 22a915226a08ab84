"""A chunked body on its way to the parser: how much at once, where it may end, and limits on trailers.

Trailers are fields that follow the last chunk. Nothing reads them, and they become no headers: they are counted against
the limits on heads, and dropped.
"""

import math
from collections import deque

from server.http.connection.head import END_OF_HEAD, MAX_HEAD_BYTES, MAX_HEADERS, too_large

_MAX_CUTS = 1000  # of one body; JSON has no empty lines, and each cut costs a microsecond
_MAX_LINES = 2048  # of a piece; each chunk has two, and takes the parser about half a microsecond
_SLICE_BYTES = 8 * 1024  # of a piece that would have more lines


class ChunkedBody:
    """One body. The parser is given pieces, and tells when it meets a chunk's length or data."""

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
        """What the parser gets next. A body ends with an empty line, so no piece goes on after one.

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
