"""Rows in an answer: in which form, as JSON, msgpack or bytes, and the headers that go with them. Knows no dialect's
fields.

int8 and uint8 are best made with ranges: the lowest and the highest number of each dimension in embeddings of usual
texts. Then each range is cut into 255 steps, as by sentence-transformers' `quantize_embeddings`. Without ranges each
row is scaled by its own largest number. That keeps its direction, so cosines need no scale. Some models make whole
numbers of their rows; these have ranges from -128 to 127, so that int8 is what they are, and a bit is the sign.

In msgpack lists of numbers have float32, which takes 5 bytes a number, or integers with 2. All that is of one size
each, so that numpy writes it; msgspec would make a Python float of every number.

Where items have a different number of rows each, the raw bytes are ragged. First come uint32 offsets [items + 1]: item
i has the rows from offsets[i] up to offsets[i + 1]. Then come the rows, in the form's type and byte order. All else is
little-endian; the headers are of one size however many items there are. Of sparse rows the numbers of the vocabulary
entries come first, uint32 [rows], then their weights, float32 [rows].
"""

import enum
import io
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from server.dialects.answers import JSON, Answer, Headers
from server.requests.errors import InvalidRequest
from server.requests.limits import steps
from server.requests.work import Embedded

Ranges = NDArray[np.float32]  # [2, dimensions]: the lowest and the highest number of each dimension


class DType(enum.Enum):
    """The types that numbers are rounded to. binary and ubinary have one bit for each number, 1 where it is above 0,
    the first number in the highest bit of a byte; binary is ubinary less 128, as int8."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8"
    UINT8 = "uint8"
    BINARY = "binary"
    UBINARY = "ubinary"


_MANTISSAS = {DType.FP8_E4M3: (3, 7), DType.FP8_E5M2: (2, 15)}  # bits, and what is taken from the exponent
_NUM_BYTES = {DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 2}  # of a number as it is sent; of all others 1
SCALED = (DType.INT8, DType.UINT8)
_LARGEST = {
    DType.FLOAT16: 65504.0,
    DType.BFLOAT16: 3.3895313892515355e38,
    DType.FP8_E4M3: 448.0,
    DType.FP8_E5M2: 57344.0,
}  # the largest finite number of each
as_msgpack = msgspec.msgpack.encode
# https://github.com/msgpack/msgpack/blob/master/spec.md: what stands before a number, and before a list.
_BEFORE_A_NUMBER = {"float32": 0xCA, "int8": 0xD0, "uint8": 0xCC}
_LIST_OF_UP_TO_15, _LIST_OF_16_BITS, _LIST_OF_32_BITS = 0x90, 0xDC, 0xDD


class Encoding(enum.Enum):
    """The spellings of a single row."""

    FLOAT = "float"  # a list of numbers
    BASE64 = "base64"  # of the row's bytes
    BYTES = "bytes"
    BYTES_ONLY = "bytes_only"  # the same without vLLM's `metadata` header


class Endianness(enum.Enum):
    """The order of a number's bytes; `native` is little too."""

    LITTLE = "little"
    BIG = "big"


class Container(enum.Enum):
    """The formats of an answer that rows are put in."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"  # the same fields as in JSON
    RAW = "application/octet-stream"  # rows and nothing else
    NPY = "application/x-npy"  # rows behind numpy's header


# Members are found slowly under their class, and most requests need several.
_FLOAT, _BASE64, _BYTES, _BYTES_ONLY = Encoding
_JSON, _MSGPACK, _RAW, _NPY = Container
BYTES = frozenset((_BYTES, _BYTES_ONLY))
EVERY_CONTAINER = frozenset(Container)
WITH_ROWS_ONLY = frozenset((_JSON, _RAW, _NPY))  # what a route offers that has no msgpack
RAGGED_ONLY = frozenset((_JSON, _RAW))  # what is not one array has no .npy either


@dataclass(frozen=True, slots=True)
class RowForm:
    """The form of rows that a request asks for."""

    encoding: Encoding = Encoding.FLOAT
    dtype: DType = DType.FLOAT32
    endianness: Endianness = Endianness.LITTLE
    container: Container = Container.JSON
    several: tuple[tuple[str, "RowForm"], ...] = ()  # each row in all of these, by their names; then the rest is unused

    @property
    def has_rows_alone(self) -> bool:
        """Whether the answer's body is nothing but rows."""
        container = self.container
        return container is _RAW or container is _NPY

    @property
    def label(self) -> str:
        """A short word for metrics and logs; "" where there are no rows."""
        if self is NO_ROWS:
            return ""
        # `value` is a property written in Python, and takes many times as long
        return self.encoding._value_ if self.container is _JSON else _LABELS[self.container]

    def put_into(self, accepted: Container, offers: frozenset[Container]) -> "RowForm":
        """Puts the rows in what the `accept` header prefers, if the route offers it; else in JSON, or alone where that
        has no place for them."""
        if accepted is _JSON or accepted not in offers or self.several:
            return self
        if accepted is _RAW and self is FLOATS:
            return RAW_FLOATS
        encoding = self.encoding if accepted is _MSGPACK or self.encoding is _BYTES else _BYTES_ONLY
        return replace(self, encoding=encoding, container=accepted)


_LABELS = {_RAW: "bytes", _NPY: "npy", _MSGPACK: "msgpack"}
NO_ROWS = RowForm()  # of an answer without any
FLOATS = RowForm()  # float32 as lists of numbers in JSON
RAW_FLOATS = RowForm(_BYTES_ONLY, container=_RAW)
ROWS = "rows of float32, or of the type that is asked for"  # raw bytes, for the OpenAPI page
_NUMPY_HAS_NOT = frozenset((DType.BFLOAT16, DType.FP8_E4M3, DType.FP8_E5M2))
RAGGED = "uint32 offsets [items + 1], then the rows"  # the same where items have several rows
_MAX_METADATA_BYTES = 6000
_MIN_METADATA_ROW_BYTES = 80  # of the header, for each item
_METADATA_ROW = '{"index":%d,"embed_dtype":"%s","endianness":"%s","start":%d,"end":%d,"shape":[%s]}'
_METADATA = '{"id":"embd-%s","created":%d,"model":%s,"data":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d}}'


def packed(rows: NDArray[np.float32], dtype: DType, ranges: Ranges | None = None) -> NDArray[Any]:
    """The numbers as they are sent, [rows, any], in the machine's byte order; bfloat16 as uint16, and fp8 as uint8.

    Raises InvalidRequest if a number is too large for the type.
    """
    if dtype is DType.FLOAT32:
        return np.ascontiguousarray(rows, np.float32)
    if dtype in _LARGEST and (np.abs(rows) > _LARGEST[dtype]).any():  # NaN, which stands for a row that failed, is not
        raise InvalidRequest(f"the rows have numbers that are too large for {dtype.value}; ask for float32")
    if dtype is DType.FLOAT16:
        return rows.astype(np.float16)
    if dtype is DType.BFLOAT16:
        return _to_bfloat16(rows)
    if dtype in _MANTISSAS:
        return _to_fp8(rows, dtype)
    if dtype in SCALED:
        return _to_int8(rows, ranges, is_signed=dtype is DType.INT8)
    bits = np.packbits(~np.signbit(rows) if are_whole(ranges) else rows > 0, axis=-1)
    return (bits ^ 128).view(np.int8) if dtype is DType.BINARY else bits  # to flip the highest bit is to subtract 128


def rounded(rows: NDArray[np.float32], dtype: DType, ranges: Ranges | None = None) -> NDArray[Any]:
    """The numbers as JSON shows them, [rows, any]: float32 that the type can hold, or integers. Raises what `packed`
    raises.
    """
    values = packed(rows, dtype, ranges)
    if dtype is DType.FLOAT16:
        return values.astype(np.float32)
    if dtype is DType.BFLOAT16:
        wide = values.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if dtype in _MANTISSAS:
        return np.take(_fp8_numbers(dtype), values)
    return values


def are_whole(ranges: Ranges | None) -> bool:
    """Whether rows have whole numbers that int8 can hold, so that nothing is left to scale."""
    return ranges is not None and bool((ranges[0] == -128).all() and (ranges[1] == 127).all())


def is_by_row(num_dimensions: int, ranges: Ranges | None) -> bool:
    """Whether rows are scaled each by its own largest number. Ranges are of whole rows: cut and normalised again, their
    numbers are larger."""
    return ranges is None or ranges.shape[1] != num_dimensions


def scales_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The number that each row was divided by, [rows]; a row of zeros by 1."""
    scales = np.abs(rows).max(axis=-1, initial=0.0) / np.float32(127)
    return np.where(scales > 0, scales, np.float32(1)).astype(np.float32)


def _to_bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to the nearest, and to the even one of two that are as near."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def _to_int8(rows: NDArray[np.float32], ranges: Ranges | None, *, is_signed: bool) -> NDArray[Any]:
    if ranges is None or is_by_row(rows.shape[1], ranges):
        numbers: NDArray[np.float32] = np.rint(rows / scales_of(rows)[:, None])  # from -127 to 127
        return numbers.astype(np.int8) if is_signed else (numbers + 128).astype(np.uint8)
    lowest, highest = ranges
    step = (highest - lowest) / 255
    numbers = np.clip(np.floor((rows - lowest) / np.where(step == 0, 1, step)), 0, 255)
    return (numbers - 128).astype(np.int8) if is_signed else numbers.astype(np.uint8)


def _to_fp8(rows: NDArray[np.float32], dtype: DType) -> NDArray[np.uint8]:
    """Rounds as for bfloat16: the upper bits of a float32, with an exponent that counts from elsewhere. Numbers below
    the smallest with a whole mantissa are multiples of one step."""
    num_bits, bias = _MANTISSAS[dtype]
    sizes, shift = np.abs(rows), 23 - num_bits
    bits = sizes.view(np.uint32)
    codes = ((bits + ((1 << (shift - 1)) - 1 + ((bits >> shift) & 1))) >> shift) - np.uint32((127 - bias) << num_bits)
    small = sizes < 2.0 ** (1 - bias)
    codes[small] = np.rint(sizes[small] * np.float32(2.0 ** (bias - 1 + num_bits)))
    return (codes | (np.signbit(rows) << np.uint32(7))).astype(np.uint8)


@cache
def _fp8_numbers(dtype: DType) -> NDArray[np.float32]:
    """The number of each of the 256 codes: sign, exponent, mantissa. What the last codes of each sign get is never
    used: they are no finite numbers."""
    num_bits, bias = _MANTISSAS[dtype]
    exponents, mantissas = np.divmod(np.arange(128), 1 << num_bits)
    normal = (1 + mantissas / (1 << num_bits)) * 2.0 ** (exponents - bias)
    small = mantissas * 2.0 ** (1 - bias - num_bits)
    positive = np.where(exponents == 0, small, normal).astype(np.float32)
    return np.concatenate((positive, -positive))


def row_bytes(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> NDArray[Any]:
    """The numbers in the form's type and byte order, [rows, any], without gaps. Raises InvalidRequest."""
    values = packed(rows, form.dtype, ranges)
    return values.astype(values.dtype.newbyteorder(">")) if form.endianness is Endianness.BIG else values


def row_values(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> Iterator[bytes]:
    """One JSON value for each row: a list of numbers, a string of base64, or an object of several of these.

    Takes a few rows at a time, see limits.steps. Raises InvalidRequest.
    """
    if form.several:
        return _objects(rows, form, ranges)
    if form.encoding is _BASE64:
        return (b'"%b"' % pybase64.b64encode(row.data) for row in row_bytes(rows, form, ranges))
    return (numbers_as_json(row) for row in rounded(rows, form.dtype, ranges))


def _objects(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None) -> Iterator[bytes]:
    names = [b'"%b":' % name.encode() for name, _ in form.several]
    for values in zip(*(row_values(rows, one, ranges) for _, one in form.several), strict=True):
        yield b"{%b}" % b",".join(name + value for name, value in zip(names, values, strict=True))


def numbers_as_json(numbers: NDArray[Any]) -> bytes:
    """A list of numbers, or of lists of them."""
    return orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)


def msgpack_values(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> Iterator[bytes]:
    """One value for each row. Takes a few rows at a time, see limits.steps. Raises InvalidRequest."""
    if form.encoding is Encoding.FLOAT:
        return _lists(rounded(rows, form.dtype, ranges))
    as_sent = (row.data for row in row_bytes(rows, form, ranges))
    if form.encoding is Encoding.BASE64:
        return (as_msgpack(pybase64.b64encode_as_string(row)) for row in as_sent)
    return (as_msgpack(bytes(row)) for row in as_sent)


def list_head(num_items: int) -> bytes:
    """The bytes before so many items."""
    if num_items < 16:
        return bytes((_LIST_OF_UP_TO_15 | num_items,))
    kind, num_bytes = (_LIST_OF_16_BITS, 2) if num_items < 1 << 16 else (_LIST_OF_32_BITS, 4)
    return bytes((kind,)) + num_items.to_bytes(num_bytes, "big")


def _lists(numbers: NDArray[Any]) -> Iterator[bytes]:
    num_rows, width = numbers.shape
    written = np.empty((num_rows, width, 1 + numbers.itemsize), np.uint8)
    written[:, :, 0] = _BEFORE_A_NUMBER[numbers.dtype.name]
    big = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder(">"))
    written[:, :, 1:] = big.view(np.uint8).reshape(num_rows, width, numbers.itemsize)
    head = list_head(width)
    return (head + row.tobytes() for row in written)


class Usage(msgspec.Struct):
    """The tokens of a request."""

    prompt_tokens: int
    total_tokens: int
    truncated_inputs: int


def headers(embedded: Embedded, form: RowForm = FLOATS, ranges: Ranges | None = None) -> Headers:
    """The headers of an answer in JSON or msgpack, without its length."""
    own = [
        JSON if form.container is _JSON else (b"content-type", form.container.value.encode()),
        (b"x-embedline-truncated-inputs", b"%d" % embedded.num_truncated),
    ]
    if form is not FLOATS and (scale := scale_of(embedded.rows.shape[1], form, ranges)):
        own.append((b"x-embedline-scale", scale))
    if embedded.failed is not None:
        own.append((b"x-embedline-failed-inputs", b"%d" % len(embedded.failed)))
    return own


def scale_of(num_dimensions: int, form: RowForm, ranges: Ranges | None) -> bytes:
    """What int8 and uint8 were scaled by: each row by its own largest number, or all by the model's ranges. Empty where
    there are none of these types."""
    if form.dtype not in SCALED and not any(one.dtype in SCALED for _, one in form.several):
        return b""
    return b"row" if is_by_row(num_dimensions, ranges) else b"ranges"


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


async def rows_alone(
    embedded: Embedded, form: RowForm, ranges: Ranges | None = None, *, beside: Headers | None = None
) -> Answer:
    """An answer of nothing but rows, of which those of failed inputs are NaN; `beside` are more headers. Raises
    InvalidRequest."""
    rows = embedded.rows
    if embedded.failed:
        rows = rows.copy()
        rows[list(embedded.failed)] = np.nan
    values = await all_row_bytes(rows, form, ranges)
    own = [*raw_headers(embedded, form, values.shape, ranges), *(beside or ())]
    return Answer(200, own, _as_npy(values, form) if form.container is _NPY else as_bytes(values))


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


async def rows_as_json(embedded: Embedded, form: RowForm = FLOATS, ranges: Ranges | None = None) -> bytearray:
    """A list in JSON of all rows, with null for those of failed inputs."""
    if embedded.failed:
        return await as_list_of(rows_or_null(embedded, form, ranges))
    return await as_json(embedded.rows, form, ranges)


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
    has_none = form.encoding is not Encoding.BYTES or form.container is not Container.RAW
    if has_none or num_items * _MIN_METADATA_ROW_BYTES > _MAX_METADATA_BYTES:
        return []
    size = len(answer.body) // max(1, len(embedded.rows))
    offsets = range(num_items + 1) if embedded.offsets is None else tuple(embedded.offsets.tolist())
    rows = _metadata_rows(offsets, size, form.dtype, form.endianness, is_ragged=embedded.offsets is not None)
    num_tokens = embedded.num_tokens
    value = (_METADATA % (request_id, time.time(), _as_ascii_json(model), rows, num_tokens, num_tokens)).encode()
    return [(b"metadata", value)] if len(value) <= _MAX_METADATA_BYTES else []


@lru_cache(maxsize=64)  # most requests of a server have one text
def _metadata_rows(
    offsets: tuple[int, ...] | range, size: int, dtype: DType, order: Endianness, *, is_ragged: bool
) -> str:
    """The entries of all items; `size` are the bytes of a row."""
    width, entries = size // _NUM_BYTES.get(dtype, 1), []
    for index, (start, stop) in enumerate(pairwise(offsets)):
        shape = f"{stop - start},{width}" if is_ragged else width
        entries.append(_METADATA_ROW % (index, dtype.value, order.value, start * size, stop * size, shape))
    return ",".join(entries)


_as_ascii_json = lru_cache(maxsize=64)(json.dumps)  # headers must have nothing but ASCII
