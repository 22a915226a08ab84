"""Raw bytes of answers whose items have a different number of rows each. Knows no dialect's fields.

First uint32 offsets [items + 1]: item i has the rows from offsets[i] up to offsets[i + 1]. Then the rows, float32. All
is little-endian; the headers are of one size however many items there are. Of sparse rows the numbers of the
vocabulary entries come first, uint32 [rows], then their weights, float32 [rows].
"""

import numpy as np
from numpy.typing import NDArray

from server.dialects.route import Headers
from server.dialects.writing.forms import RAW_FLOATS
from server.dialects.writing.rows import raw_headers
from server.requests.work import Embedded

RAGGED = "uint32 offsets [items + 1], then the float32 rows"  # for the OpenAPI page


def ragged_headers(embedded: Embedded) -> Headers:
    """The answer's headers without its length."""
    assert embedded.offsets is not None
    own = raw_headers(embedded, RAW_FLOATS, embedded.rows.shape)
    return [*own, (b"x-embedline-offsets", b"%d" % len(embedded.offsets))]


def sparse_headers(embedded: Embedded) -> Headers:
    """The same for sparse rows; their shape is rows,2."""
    return [
        (name, b"uint32,float32" if name == b"x-embedline-dtype" else value) for name, value in ragged_headers(embedded)
    ]


def ragged_bytes(embedded: Embedded) -> bytes:
    """Offsets and rows; copied once, since it can be a hundred megabytes."""
    return b"".join((_offsets(embedded), np.ascontiguousarray(embedded.rows, "<f4").data))


def sparse_bytes(embedded: Embedded) -> bytes:
    """Offsets, vocabulary entries, weights."""
    numbers: NDArray[np.uint32] = embedded.rows[:, 0].astype("<u4")
    weights = np.ascontiguousarray(embedded.rows[:, 1], "<f4")
    return b"".join((_offsets(embedded), numbers.data, weights.data))


def _offsets(embedded: Embedded) -> memoryview:
    assert embedded.offsets is not None
    return embedded.offsets.astype("<u4").data
