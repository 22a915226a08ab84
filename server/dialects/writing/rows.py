"""Rows of floats as they go out, in JSON or as they are. Knows no dialect's fields."""

import asyncio
import enum
from collections.abc import AsyncIterator, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from server.http.body import Headers
from server.requests.pipeline import Embedded

_ROWS_A_SLICE = 16  # floats of so many rows are written before the event loop gets its turn: about 1 ms


class Encoding(enum.Enum):
    """The form of the rows in the answer."""

    FLOAT = "float"
    BASE64 = "base64"  # of little-endian float32, in JSON
    BYTES = "bytes"  # little-endian float32 and nothing else


def headers(embedded: Embedded, encoding: Encoding) -> Headers:
    """The answer's headers, less its length; those of raw bytes are of one size however many rows there are."""
    truncated = (b"x-embedline-truncated-inputs", b"%d" % embedded.num_truncated)
    if encoding is not Encoding.BYTES:
        return [(b"content-type", b"application/json"), truncated]
    num_rows, width = embedded.rows.shape
    return [
        (b"content-type", b"application/octet-stream"),
        (b"x-embedline-shape", b"%d,%d" % (num_rows, width)),
        (b"x-embedline-dtype", b"float32"),
        (b"x-embedline-prompt-tokens", b"%d" % embedded.num_tokens),
        truncated,
    ]


def as_bytes(rows: NDArray[np.float32]) -> memoryview:
    """Little-endian float32 and nothing else."""
    return np.ascontiguousarray(rows, "<f4").reshape(-1).data.cast("B")


async def as_json(rows: NDArray[np.float32]) -> bytes:
    """A list of lists of numbers."""
    return as_list([orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] async for _, part in in_slices(rows)])


def as_list(items: Sequence[bytes]) -> bytes:
    """A list in JSON of what is in JSON already; copied once, since it can be a hundred megabytes."""
    return b"".join((b"[", *items[:1], *(part for item in items[1:] for part in (b",", item)), b"]"))


async def in_slices(rows: NDArray[np.float32]) -> AsyncIterator[tuple[int, NDArray[np.float32]]]:
    """Some rows after the other, each time with the index of the first; between them other requests get their turn."""
    for first in range(0, len(rows), _ROWS_A_SLICE):
        if first:
            await asyncio.sleep(0)
        yield first, np.ascontiguousarray(rows[first : first + _ROWS_A_SLICE], "<f4")
