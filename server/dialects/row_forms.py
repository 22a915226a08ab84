"""The forms of rows in answers: as JSON numbers, base64, bytes or msgpack, of which type of numbers, and in what
container. Knows no dialect's fields.

int8 and uint8 are best made with ranges: the lowest and the highest number of each dimension in embeddings of usual
texts. Then each range is cut into 255 steps, as by sentence-transformers' `quantize_embeddings`. Without ranges each
row is scaled by its own largest number. That keeps its direction, so cosines need no scale.

In msgpack lists of numbers have float32, which takes 5 bytes a number, or integers with 2. All that is of one size
each, so that numpy writes it; msgspec would make a Python float of every number.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from server.requests.errors import InvalidRequest

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

    @property
    def num_bytes(self) -> int:
        """The bytes of a number as it is sent; of 8 numbers of one bit."""
        return {"float32": 4, "float16": 2, "bfloat16": 2}.get(self.value, 1)


# Members are found slowly under their class.
_FLOAT32, _FLOAT16, _BFLOAT16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
_MANTISSAS = {DType.FP8_E4M3: (3, 7), DType.FP8_E5M2: (2, 15)}  # bits, and what is taken from the exponent
SCALED = frozenset((DType.INT8, DType.UINT8))
_LARGEST = {_FLOAT16: 65504.0, _BFLOAT16: 3.3895313892515355e38, DType.FP8_E4M3: 448.0, DType.FP8_E5M2: 57344.0}
as_msgpack = msgspec.msgpack.encode
# https://github.com/msgpack/msgpack/blob/master/spec.md: what stands before a number, and before a list.
_BEFORE_A_NUMBER = {"float32": 0xCA, "int8": 0xD0, "uint8": 0xCC}
_LIST_OF_UP_TO_15, _LIST_OF_16_BITS, _LIST_OF_32_BITS = 0x90, 0xDC, 0xDD


def packed(rows: NDArray[np.float32], dtype: DType, ranges: Ranges | None = None) -> NDArray[Any]:
    """The numbers as they are sent, [rows, any], in the machine's byte order; bfloat16 as uint16, and fp8 as uint8.

    Raises InvalidRequest if a number is too large for the type.
    """
    if dtype is _FLOAT32:
        return np.ascontiguousarray(rows, np.float32)
    if dtype in _LARGEST:
        _check_range(rows, dtype)
    if dtype is _FLOAT16:
        return rows.astype(np.float16)
    if dtype is _BFLOAT16:
        return _to_bfloat16(rows)
    if dtype in _MANTISSAS:
        return _to_fp8(rows, dtype)
    if dtype in SCALED:
        return _to_int8(rows, ranges, is_signed=dtype is DType.INT8)
    bits = np.packbits(rows > 0, axis=-1)
    return (bits ^ 128).view(np.int8) if dtype is DType.BINARY else bits  # to flip the highest bit is to subtract 128


def rounded(rows: NDArray[np.float32], dtype: DType, ranges: Ranges | None = None) -> NDArray[Any]:
    """The numbers as JSON shows them, [rows, any]: float32 that the type can hold, or integers. Raises what `packed`
    raises.
    """
    values = packed(rows, dtype, ranges)
    if dtype is _FLOAT16:
        return values.astype(np.float32)
    if dtype is _BFLOAT16:
        wide = values.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    if dtype in _MANTISSAS:
        return np.take(_fp8_numbers(dtype), values)
    return values


def is_by_row(num_dimensions: int, ranges: Ranges | None) -> bool:
    """Whether rows are scaled each by its own largest number. Ranges are of whole rows: cut and normalised again, their
    numbers are larger."""
    return ranges is None or ranges.shape[1] != num_dimensions


def scales_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The number that each row was divided by, [rows]; a row of zeros by 1."""
    scales = np.abs(rows).max(axis=-1, initial=0.0) / np.float32(127)
    return np.where(scales > 0, scales, np.float32(1)).astype(np.float32)


def _check_range(rows: NDArray[np.float32], dtype: DType) -> None:
    if (np.abs(rows) > _LARGEST[dtype]).any():  # NaN, which stands for a row that failed, is not
        raise InvalidRequest(f"the rows have numbers that are too large for {dtype.value}; ask for float32")


def _to_bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to the nearest, and to the even one of two that are as near."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def _to_int8(rows: NDArray[np.float32], ranges: Ranges | None, *, is_signed: bool) -> NDArray[Any]:
    if ranges is None or is_by_row(rows.shape[1], ranges):
        numbers: NDArray[np.float32] = np.rint(rows / scales_of(rows)[:, None])  # from -127 to 127
        return numbers.astype(np.int8) if is_signed else (numbers + 128).astype(np.uint8)
    lowest, highest = ranges
    steps = (highest - lowest) / 255
    numbers = np.clip(np.floor((rows - lowest) / np.where(steps == 0, 1, steps)), 0, 255)
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
        return self.encoding.value if self.container is _JSON else _LABELS[self.container]

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


def row_bytes(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> NDArray[Any]:
    """The numbers in the form's type and byte order, [rows, any], without gaps. Raises InvalidRequest."""
    values = packed(rows, form.dtype, ranges)
    return values.astype(values.dtype.newbyteorder(">")) if form.endianness is Endianness.BIG else values


def row_values(rows: NDArray[np.float32], form: RowForm, ranges: Ranges | None = None) -> Iterator[bytes]:
    """One JSON value for each row: a list of numbers, a string of base64, or an object of several of these.

    Takes a few rows at a time, see time_slices. Raises InvalidRequest.
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
    """One value for each row. Takes a few rows at a time, see time_slices. Raises InvalidRequest."""
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
    if num_items < 1 << 16:
        return bytes((_LIST_OF_16_BITS,)) + num_items.to_bytes(2, "big")
    return bytes((_LIST_OF_32_BITS,)) + num_items.to_bytes(4, "big")


def _lists(numbers: NDArray[Any]) -> Iterator[bytes]:
    num_rows, width = numbers.shape
    size = numbers.itemsize
    written = np.empty((num_rows, width, 1 + size), np.uint8)
    written[:, :, 0] = _BEFORE_A_NUMBER[numbers.dtype.name]
    big = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder(">"))
    written[:, :, 1:] = big.view(np.uint8).reshape(num_rows, width, size)
    head = list_head(width)
    return (head + row.tobytes() for row in written)
