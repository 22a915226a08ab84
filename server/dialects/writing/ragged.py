"""Raw bytes of answers whose items have a different number of rows each. Knows no dialect's fields.

First uint32 offsets [items + 1]: item i has the rows from offsets[i] up to offsets[i + 1]. Then the rows, in the form's
type and byte order. All else is little-endian; the headers are of one size however many items there are. Of sparse rows
the numbers of the vocabulary entries come first, uint32 [rows], then their weights, float32 [rows].
"""

import numpy as np
from numpy.typing import NDArray

from server.dialects.route import Answer, Headers
from server.dialects.writing.forms import RAW_FLOATS, RowForm
from server.dialects.writing.rows import all_row_bytes, as_bytes, raw_headers
from server.requests.work import Embedded

RAGGED = "uint32 offsets [items + 1], then the rows"  # for the OpenAPI page


async def ragged_answer(embedded: Embedded, form: RowForm = RAW_FLOATS, *, beside: Headers) -> Answer:
    """Offsets and rows; `beside` are more headers. Raises InvalidRequest."""
    values = await all_row_bytes(embedded.rows, form)
    return Answer(
        200,
        [*_headers(embedded, form, values.shape), *beside],
        b"".join((_offsets(embedded), as_bytes(values))),  # copied once, since it can be a hundred megabytes
    )


def sparse_headers(embedded: Embedded) -> Headers:
    """The answer's headers without its length; their shape is rows,2."""
    own = _headers(embedded, RAW_FLOATS, embedded.rows.shape)
    return [(name, b"uint32,float32" if name == b"x-embedline-dtype" else value) for name, value in own]


def sparse_bytes(embedded: Embedded) -> bytes:
    """Offsets, vocabulary entries, weights."""
    numbers: NDArray[np.uint32] = embedded.rows[:, 0].astype("<u4")
    weights = np.ascontiguousarray(embedded.rows[:, 1], "<f4")
    return b"".join((_offsets(embedded), numbers.data, weights.data))


def _headers(embedded: Embedded, form: RowForm, shape: tuple[int, ...]) -> Headers:
    assert embedded.offsets is not None
    return [*raw_headers(embedded, form, shape), (b"x-embedline-offsets", b"%d" % len(embedded.offsets))]


def _offsets(embedded: Embedded) -> memoryview:
    assert embedded.offsets is not None
    return embedded.offsets.astype("<u4").data
