"""Finds JSON that is nested too deeply or made of too many lists and objects, before a parser spends its time on it.

A parser holds the event loop until it is done, and 12 MB may be four million lists. So large bodies are looked through
in slices first, in between which other requests run. Numpy adds the brackets up: Python would take seconds for them.
"""

from collections.abc import Iterator

import numpy as np

from server.requests.errors import MalformedBody
from server.requests.time_slices import TimeSlice

MAX_DEPTH = 64
MAX_LISTS = 262_144  # lists and objects of a body: a parser takes some 10 ms for them
LARGE_BYTES = 64 * 1024  # what has more is looked through in slices; also the size of a piece
_QUOTE = 2
_MARKS = bytes.maketrans(b'[{]}"', bytes((1, 1, 255, 255, _QUOTE)))  # 255 is -1: a level less
_OTHERS = bytes(set(range(256)) - set(b'[{]}"'))
_MARKS_A_STEP = 1 << 14  # so that int16 has room for the levels, and numpy's arrays stay in the cache


def check_nesting(body: bytes) -> None:
    """Raises MalformedBody for JSON that is nested too deeply. For bodies that are not large."""
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _Nesting().add(body)


async def check_large(body: bytes) -> None:
    """The same for a large body, which may not be JSON; it must not have more than MAX_LISTS lists and objects either.

    Lets other requests run meanwhile.
    """
    time_slice, num_opened = TimeSlice(), 0
    for start in range(0, len(body), LARGE_BYTES):
        letters = np.frombuffer(body, np.uint8, min(LARGE_BYTES, len(body) - start), start)
        num_opened += int(np.count_nonzero(letters | 0x20 == ord("{")))  # the bit that tells { from [
        await time_slice.end_if_over()
    if num_opened <= MAX_DEPTH:
        return
    nesting = _Nesting()
    for piece in pieces(body):
        nesting.add(piece)
        await time_slice.end_if_over()


class _Nesting:
    """Adds up the lists and objects of one body."""

    def __init__(self) -> None:
        self._level = 0
        self._is_in_text = np.uint8(0)
        self._num_lists = 0

    def add(self, json: bytes) -> None:
        """The next piece, which ends no escape in its middle. Raises MalformedBody."""
        if b"\\" in json:
            json = json.replace(rb"\\", b"").replace(rb"\"", b"")
        marks = np.frombuffer(json.translate(_MARKS, _OTHERS), np.int8)
        for start in range(0, len(marks), _MARKS_A_STEP):
            self._add_marks(marks[start : start + _MARKS_A_STEP])

    def _add_marks(self, marks: "np.ndarray[tuple[int], np.dtype[np.int8]]") -> None:
        is_quote = marks == _QUOTE
        is_text = (np.cumsum(is_quote, dtype=np.uint8) & 1) ^ self._is_in_text  # wrapping keeps odd numbers odd
        changes = marks * (1 - (is_text | is_quote))
        levels = np.cumsum(changes, dtype=np.int16)
        if self._level + int(levels.max()) > MAX_DEPTH:
            raise MalformedBody(f"the body is nested deeper than {MAX_DEPTH} levels")
        self._num_lists += int(np.count_nonzero(changes == 1))
        if self._num_lists > MAX_LISTS:
            raise MalformedBody(f"the body has more than {MAX_LISTS} lists and objects")
        self._level, self._is_in_text = self._level + int(levels[-1]), is_text[-1]


def pieces(body: bytes) -> Iterator[bytes]:
    """Of at most LARGE_BYTES each. A backslash is in the same piece as what it escapes."""
    start = 0
    while start < len(body):
        piece = body[start : start + LARGE_BYTES]
        num_last = len(piece) - len(piece.rstrip(b"\\"))
        if num_last % 2 and len(piece) > 1:
            piece = piece[:-1]
        yield piece
        start += len(piece)
