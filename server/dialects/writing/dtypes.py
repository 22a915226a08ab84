"""The types of numbers that rows are answered in. Knows no encoding and no dialect.

int8 and uint8 are best made with ranges: the lowest and the highest number of each dimension in embeddings of usual
texts. Then each range is cut into 255 steps, as by sentence-transformers' `quantize_embeddings`. Without ranges each
row is scaled by its own largest number. That keeps its direction, so cosines need no scale.
"""

import enum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.requests.errors import InvalidRequest

Ranges = NDArray[np.float32]  # [2, dimensions]: the lowest and the highest number of each dimension


class DType(enum.Enum):
    """What numbers are rounded to. binary and ubinary have one bit for each number, 1 where it is above 0, the first
    number in the highest bit of a byte; binary is ubinary less 128, as int8."""

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
        """Of a number as it is sent; of 8 bits."""
        return {"float32": 4, "float16": 2, "bfloat16": 2}.get(self.value, 1)


# Members are found slowly under their class.
_FLOAT32, _FLOAT16, _BFLOAT16 = DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16
_MANTISSAS = {DType.FP8_E4M3: (3, 7), DType.FP8_E5M2: (2, 15)}  # bits, and what is taken from the exponent
SCALED = frozenset((DType.INT8, DType.UINT8))
_LARGEST = {_FLOAT16: 65504.0, _BFLOAT16: 3.3895313892515355e38, DType.FP8_E4M3: 448.0, DType.FP8_E5M2: 57344.0}


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
    """What each row was divided by, [rows]; a row of zeros by 1."""
    scales = np.abs(rows).max(axis=-1, initial=0.0) / np.float32(127)
    return np.where(scales > 0, scales, np.float32(1)).astype(np.float32)


def _check_range(rows: NDArray[np.float32], dtype: DType) -> None:
    if (np.abs(rows) > _LARGEST[dtype]).any():  # NaN, which stands for a row that failed, is not
        raise InvalidRequest(f"the rows have numbers that are too large for {dtype.value}; ask for float32")


def _to_bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """To the nearest, and to the even one of two that are as near."""
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
    """As for bfloat16: the upper bits of a float32, with an exponent that counts from elsewhere. Numbers below the
    smallest with a whole mantissa are multiples of one step."""
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
