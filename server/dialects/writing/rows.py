"""Rows of floats in an answer, as JSON or as raw bytes. Knows no dialect's fields."""

from collections.abc import Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from server.dialects.route import Encoding, Headers
from server.requests.time_slices import steps
from server.requests.work import Embedded

ROWS = "float32 rows"  # raw bytes, for the OpenAPI page


def headers(embedded: Embedded, encoding: Encoding) -> Headers:
    """The answer's headers without its length; raw bytes have the same headers for any number of rows."""
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
    return as_list([numbers_as_json(rows[part])[1:-1] async for part in steps(*rows.shape)])


def numbers_as_json(numbers: NDArray[np.float32]) -> bytes:
    """A list of numbers, or of lists of them."""
    return orjson.dumps(np.ascontiguousarray(numbers, "<f4"), option=orjson.OPT_SERIALIZE_NUMPY)


def as_list(items: Sequence[bytes]) -> bytes:
    """A JSON list of items that are JSON already; copied once, because it can be a hundred megabytes."""
    return b"".join((b"[", *items[:1], *(part for item in items[1:] for part in (b",", item)), b"]"))
