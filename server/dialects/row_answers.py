"""Rows in an answer, as JSON or alone, and the headers that go with them. Knows no dialect's fields.

Where items have a different number of rows each, the raw bytes are ragged. First come uint32 offsets [items + 1]: item
i has the rows from offsets[i] up to offsets[i + 1]. Then come the rows, in the form's type and byte order. All else is
little-endian; the headers are of one size however many items there are. Of sparse rows the numbers of the vocabulary
entries come first, uint32 [rows], then their weights, float32 [rows].
"""

import io
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from server.dialects.route import JSON, Answer, Headers
from server.dialects.row_forms import (
    FLOATS,
    RAW_FLOATS,
    SCALED,
    Container,
    DType,
    Encoding,
    Endianness,
    Ranges,
    RowForm,
    is_by_row,
    list_head,
    msgpack_values,
    numbers_as_json,
    rounded,
    row_bytes,
    row_values,
)
from server.requests.errors import InvalidRequest
from server.requests.time_slices import steps
from server.requests.work import Embedded

ROWS = "rows of float32, or of the type that is asked for"  # raw bytes, for the OpenAPI page
_NUMPY_HAS_NOT = frozenset((DType.BFLOAT16, DType.FP8_E4M3, DType.FP8_E5M2))
RAGGED = "uint32 offsets [items + 1], then the rows"  # the same where items have several rows


_MAX_METADATA_BYTES = 6000
_MIN_METADATA_ROW_BYTES = 80  # of the header, for each item
_METADATA_ROW = '{"index":%d,"embed_dtype":"%s","endianness":"%s","start":%d,"end":%d,"shape":[%s]}'
_METADATA = '{"id":"embd-%s","created":%d,"model":%s,"data":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d}}'


class Usage(msgspec.Struct):
    """The tokens of a request."""

    prompt_tokens: int
    total_tokens: int
    truncated_inputs: int


def headers(embedded: Embedded, form: RowForm = FLOATS, ranges: Ranges | None = None) -> Headers:
    """The headers of an answer in JSON or msgpack, without its length."""
    return [
        JSON if form.container is Container.JSON else (b"content-type", form.container.value.encode()),
        (b"x-embedline-truncated-inputs", b"%d" % embedded.num_truncated),
        *(_scale_header(embedded, form, ranges) if form.dtype is not DType.FLOAT32 or form.several else ()),
        *(_failed_header(embedded) if embedded.failed is not None else ()),
    ]


def raw_headers(embedded: Embedded, form: RowForm, shape: tuple[int, ...], ranges: Ranges | None = None) -> Headers:
    """The headers of rows alone, as long for any number of them. `shape` is that of the numbers as they are sent."""
    own = [
        *headers(embedded, form, ranges),
        (b"x-embedline-shape", b"%d,%d" % shape),
        (b"x-embedline-dtype", form.dtype.value.encode()),
        (b"x-embedline-prompt-tokens", b"%d" % embedded.num_tokens),
    ]
    if form.endianness is Endianness.BIG:
        own.append((b"x-embedline-endianness", b"big"))
    return own


def _scale_header(embedded: Embedded, form: RowForm, ranges: Ranges | None) -> Headers:
    """The header with what int8 and uint8 were scaled by: each row by its own largest number, or all by the model's
    ranges."""
    if form.dtype not in SCALED and not any(one.dtype in SCALED for _, one in form.several):
        return []
    return [(b"x-embedline-scale", b"row" if is_by_row(embedded.rows.shape[1], ranges) else b"ranges")]


def _failed_header(embedded: Embedded) -> Headers:
    """The header with the number of inputs that have an error of their own, if they may."""
    return [(b"x-embedline-failed-inputs", b"%d" % len(embedded.failed or ()))]


async def rows_alone(
    embedded: Embedded, form: RowForm, ranges: Ranges | None = None, *, beside: Headers | None = None
) -> Answer:
    """An answer of nothing but rows; `beside` are more headers. Raises InvalidRequest."""
    values = await all_row_bytes(_with_nan(embedded), form, ranges)
    own = [*raw_headers(embedded, form, values.shape, ranges), *(beside or ())]
    body = _as_npy(values, form) if form.container is Container.NPY else as_bytes(values)
    return Answer(200, own, body)


def _with_nan(embedded: Embedded) -> NDArray[np.float32]:
    """The rows; those of failed inputs are NaN."""
    if not embedded.failed:
        return embedded.rows
    rows = embedded.rows.copy()
    rows[list(embedded.failed)] = np.nan
    return rows


async def all_row_bytes(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> NDArray[Any]:
    """The bytes of all rows, made by row_bytes in slices, so that other requests run in between. float32 is not even
    copied."""
    if form.dtype is DType.FLOAT32 and form.endianness is Endianness.LITTLE:
        return row_bytes(rows, form)
    whole: NDArray[Any] | None = None
    async for part in steps(*rows.shape):
        values = row_bytes(rows[part], form, ranges)
        if whole is None:
            whole = np.empty((len(rows), values.shape[1]), values.dtype)
        whole[part] = values
    return row_bytes(rows, form, ranges) if whole is None else whole


def as_bytes(numbers: NDArray[Any]) -> memoryview:
    """The bytes of an array without gaps."""
    return numbers.reshape(-1).view(np.uint8).data


def _as_npy(values: NDArray[Any], form: RowForm) -> bytes:
    if form.dtype in _NUMPY_HAS_NOT:
        raise InvalidRequest(f".npy files have no {form.dtype.value}; ask for application/octet-stream")
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(values))
    return b"".join((head.getvalue(), as_bytes(values)))


async def in_container(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> bytearray:
    """A list with one value for each row, in JSON or msgpack."""
    if form.container is not Container.MSGPACK:
        return await as_json(rows, form, ranges)
    out = bytearray(list_head(len(rows)))
    async for part in steps(*rows.shape):
        out += b"".join(msgpack_values(rows[part], form, ranges))
    return out


async def as_json(rows: NDArray[np.float32], form: RowForm = FLOATS, ranges: Ranges | None = None) -> bytearray:
    """A list of all rows in JSON. Written into one buffer, because it can be a hundred megabytes."""
    out = bytearray(b"[")
    async for part in steps(*rows.shape):
        if part.start:
            out += b","
        if form.encoding is Encoding.BASE64:
            out += b",".join(row_values(rows[part], form, ranges))
        else:
            out += memoryview(numbers_as_json(rounded(rows[part], form.dtype, ranges)))[1:-1]
    out += b"]"
    return out


async def rows_or_null(embedded: Embedded, form: RowForm, ranges: Ranges | None = None) -> AsyncIterator[bytes]:
    """One JSON value for each row, null for those of failed inputs."""
    failed = embedded.failed or {}
    async for part in steps(*embedded.rows.shape):
        for index, value in enumerate(row_values(embedded.rows[part], form, ranges), part.start):
            yield b"null" if index in failed else value


async def as_list_of(items: AsyncIterable[bytes | bytearray]) -> bytearray:
    """A JSON list of items that come one by one, so that they are never all held beside it."""
    out = bytearray(b"[")
    async for item in items:
        if len(out) > 1:
            out += b","
        out += item
    out += b"]"
    return out


def as_list(items: Sequence[bytes | bytearray]) -> bytes:
    """A JSON list of items that are JSON already; copied once, because it can be a hundred megabytes."""
    return b"".join((b"[", *items[:1], *(part for item in items[1:] for part in (b",", item)), b"]"))


async def ragged_answer(embedded: Embedded, form: RowForm = RAW_FLOATS, *, beside: Headers) -> Answer:
    """Answers with offsets and rows; `beside` are more headers. Raises InvalidRequest."""
    values = await all_row_bytes(embedded.rows, form)
    return Answer(
        200,
        [*_ragged_headers(embedded, form, values.shape), *beside],
        b"".join((_offsets(embedded), as_bytes(values))),  # copied once, since it can be a hundred megabytes
    )


def sparse_headers(embedded: Embedded) -> Headers:
    """The answer's headers without its length; their shape is rows,2."""
    own = _ragged_headers(embedded, RAW_FLOATS, embedded.rows.shape)
    return [(name, b"uint32,float32" if name == b"x-embedline-dtype" else value) for name, value in own]


def sparse_bytes(embedded: Embedded) -> bytes:
    """The bytes of sparse rows: offsets, vocabulary entries, weights."""
    numbers: NDArray[np.uint32] = embedded.rows[:, 0].astype("<u4")
    weights = np.ascontiguousarray(embedded.rows[:, 1], "<f4")
    return b"".join((_offsets(embedded), numbers.data, weights.data))


def _ragged_headers(embedded: Embedded, form: RowForm, shape: tuple[int, ...]) -> Headers:
    assert embedded.offsets is not None
    return [*raw_headers(embedded, form, shape), (b"x-embedline-offsets", b"%d" % len(embedded.offsets))]


def _offsets(embedded: Embedded) -> memoryview:
    assert embedded.offsets is not None
    return embedded.offsets.astype("<u4").data


def metadata_header(answer: Answer, embedded: Embedded, form: RowForm, *, model: str, request_id: str) -> Headers:
    """vLLM's `metadata`, which says where the row or rows of each item stand in an answer of raw bytes.

    There is none for other forms, and none where it would be large: it grows with the rows, and clients limit their
    headers, aiohttp for one to 8,190 bytes. Our own headers say the same in few bytes.
    """
    num_items = len(embedded.truncated)
    if form.encoding is not Encoding.BYTES or form.container is not Container.RAW:
        return []
    if num_items * _MIN_METADATA_ROW_BYTES > _MAX_METADATA_BYTES:
        return []
    size = len(answer.body) // max(1, len(embedded.rows))
    width = size // form.dtype.num_bytes
    of_all = (form.dtype.value, form.endianness.value)
    is_ragged = embedded.offsets is not None
    offsets = range(num_items + 1) if embedded.offsets is None else embedded.offsets.tolist()
    rows = ",".join(
        _METADATA_ROW % (index, *of_all, start * size, stop * size, f"{stop - start},{width}" if is_ragged else width)
        for index, (start, stop) in enumerate(pairwise(offsets))
    )
    num_tokens = embedded.num_tokens
    value = (_METADATA % (request_id, time.time(), _as_ascii_json(model), rows, num_tokens, num_tokens)).encode()
    return [(b"metadata", value)] if len(value) <= _MAX_METADATA_BYTES else []


@lru_cache(maxsize=64)
def _as_ascii_json(name: str) -> str:
    """Writes JSON with nothing but ASCII, as headers must be."""
    return json.dumps(name)
