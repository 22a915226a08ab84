"""Rows as PostgreSQL's COPY takes them in its binary format; vectors as pgvector's own functions receive them."""

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from server.backfill.parts import Content

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)  # no flags, no more of a header
_NULL, _END = struct.pack(">i", -1), struct.pack(">h", -1)
_ROWS_AT_A_TIME = 512


def binary_copy(content: Content) -> Iterator[bytes]:
    """The rows that have an id, as (id, embedding), null where a row failed. Ids are int (bigint) or str (text); rows
    float16 (halfvec) or float32 (vector)."""
    yield _HEAD
    for start in range(0, len(content.ids), _ROWS_AT_A_TIME):
        stop = min(start + _ROWS_AT_A_TIME, len(content.ids))
        vectors = _vectors(content.rows[start:stop])
        places = (place for place in range(start, stop) if content.ids[place] is not None)
        yield b"".join(
            b"\0\2" + _id(content.ids[place]) + (_NULL if place in content.failed else vectors[place - start])
            for place in places
        )
    yield _END


def _id(key: int | str) -> bytes:
    if isinstance(key, int):
        return struct.pack(">iq", 8, key)
    data = key.encode()
    return struct.pack(">i", len(data)) + data


def _vectors(rows: NDArray[np.floating]) -> list[bytes]:
    """Of [n, dimensions]: the length of the field, the dimensions, two bytes of nothing, the numbers."""
    dimensions = rows.shape[1]
    head = struct.pack(">ihh", 4 + dimensions * rows.itemsize, dimensions, 0)
    return [head + row.tobytes() for row in rows.astype(rows.dtype.newbyteorder(">"))]
