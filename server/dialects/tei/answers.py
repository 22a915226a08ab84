"""What goes out on text-embeddings-inference's own routes for embedding models, with its timing headers."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import numpy as np
import orjson
from numpy.typing import NDArray

from server.dialects.tei.bodies import Form
from server.dialects.writing.ragged import ragged_bytes, ragged_headers
from server.dialects.writing.rows import Encoding, as_bytes, as_json, as_list, headers
from server.http.body import Headers
from server.requests.pipeline import Embedded
from server.requests.trace import Trace

_COMPUTE_TYPE = b"gpu+optimized"  # TEI says so on a CPU too


def encoding_of(form: Form) -> Encoding:
    """How the numbers go out."""
    return Encoding.BYTES if form in (Form.RAW_ROWS, Form.RAW_TOKEN_ROWS) else Encoding.FLOAT


def all_headers(embedded: Embedded, form: Form, trace: Trace) -> Headers:
    """Those that every answer with rows has, and TEI's."""
    if form is Form.RAW_TOKEN_ROWS:
        return [*ragged_headers(embedded), *timing_headers(trace)]
    return [*headers(embedded, encoding_of(form)), *timing_headers(trace)]


def timing_headers(trace: Trace) -> Headers:
    """TEI's: durations are whole milliseconds of the request."""
    total = trace.elapsed()
    return [
        (b"x-compute-type", _COMPUTE_TYPE),
        (b"x-compute-time", _milliseconds(total)),
        (b"x-compute-characters", b"%d" % trace.num_characters),
        (b"x-compute-tokens", b"%d" % trace.num_tokens),
        (b"x-total-time", _milliseconds(total)),
        (b"x-tokenization-time", _milliseconds(trace.tokenize_seconds)),
        (b"x-queue-time", _milliseconds(trace.queue_seconds)),
        (b"x-inference-time", _milliseconds(trace.compute_seconds)),
    ]


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % int(1000 * seconds)


async def encode(embedded: Embedded, form: Form) -> bytes | memoryview:
    """The body of the answer. Long work is done in slices, so that other requests get their turn."""
    match form:
        case Form.ROWS:
            return await as_json(embedded.rows)
        case Form.RAW_ROWS:
            return as_bytes(embedded.rows)
        case Form.TOKEN_ROWS:
            return await token_rows(embedded)
        case Form.RAW_TOKEN_ROWS:
            return ragged_bytes(embedded)
        case Form.SIMILARITIES:
            return bytes(orjson.dumps(_similarities(embedded.rows), option=orjson.OPT_SERIALIZE_NUMPY))


async def token_rows(embedded: Embedded) -> bytes:
    """A list of rows for each item, in JSON."""
    return as_list([item async for item in token_rows_by_item(embedded)])


async def token_rows_by_item(embedded: Embedded) -> AsyncIterator[bytes]:
    """The rows of one item after the other, each in JSON."""
    assert embedded.offsets is not None
    for start, stop in pairwise(embedded.offsets.tolist()):
        yield await as_json(embedded.rows[start:stop])
        await asyncio.sleep(0)


def _similarities(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosines of the first row with each of the others; all are of length 1."""
    cosines: NDArray[np.float32] = np.einsum("nd,d->n", rows[1:], rows[0])
    return cosines
