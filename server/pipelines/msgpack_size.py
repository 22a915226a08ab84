"""Finds msgpack that is made of too many values or lists, before a decoder holds the event loop for them.

A byte may be an empty list: a body of 64 MB would be 4 GB of them, and ten seconds without a heartbeat.
"""

from server.dialects.reading.nesting import LARGE_BYTES, MAX_LISTS
from server.requests.errors import MalformedBody
from server.requests.time_slices import TimeSlice

MAX_VALUES = 2_000_000  # besides what is in arrays, each of which is one
_VALUES_A_STEP = 1 << 12
_IS_LIST = bytes(first in range(0x80, 0xA0) or first in range(0xDC, 0xE0) for first in range(256))  # or a map
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bin, ext, str
_SIZES = [1] * 0xA0 + [1 + size for size in range(32)] + [1] * 0x40  # by the first byte, of what has a size of its own
_SIZES[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]  # float, uint, int
_SIZES[0xD4:0xD9] = [3, 4, 6, 10, 18]  # fixext
_SIZES[0xDC:0xE0] = [3, 5, 3, 5]  # without what is in it, which follows
for _first, _num_bytes in _LENGTH_BYTES.items():
    _SIZES[_first] = 1 + _num_bytes + (_first in (0xC7, 0xC8, 0xC9))  # ext has a type too


async def check_msgpack(body: bytes) -> None:
    """Raises MalformedBody. The body may be no msgpack. Lets other runs go on meanwhile."""
    if len(body) <= LARGE_BYTES:
        return
    time_slice, at, num_values, num_lists = TimeSlice(), 0, 0, 0
    while at < len(body):
        at, more = _pass(body, at)
        num_values, num_lists = num_values + _VALUES_A_STEP, num_lists + more
        if num_lists > MAX_LISTS:
            raise MalformedBody(f"the body has more than {MAX_LISTS} lists and maps")
        if num_values > MAX_VALUES:
            raise MalformedBody(f"the body has more than {MAX_VALUES} values; send arrays as their bytes")
        await time_slice.end_if_over()


def _pass(body: bytes, at: int) -> tuple[int, int]:
    """Where the next values begin, and how many lists and maps were among those that were passed."""
    num_lists = 0
    for _ in range(_VALUES_A_STEP):
        if at >= len(body):
            break
        first = body[at]
        num_lists += _IS_LIST[first]
        if num_bytes := _LENGTH_BYTES.get(first):
            at += int.from_bytes(body[at + 1 : at + 1 + num_bytes], "big")
        at += _SIZES[first]
    return at, num_lists
