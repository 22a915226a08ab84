"""The types of numbers in answers, held against torch's and sentence-transformers' own."""

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import util

from server.dialects.row_answers import (
    FLOATS,
    DType,
    Encoding,
    Endianness,
    RowForm,
    is_by_row,
    packed,
    rounded,
    row_bytes,
    row_values,
    scales_of,
)
from server.requests.errors import InvalidRequest

FLOAT_TYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FP8_E4M3: torch.float8_e4m3fn,
    DType.FP8_E5M2: torch.float8_e5m2,
}
LARGEST = {DType.FLOAT16: 65504.0, DType.FP8_E4M3: 448.0, DType.FP8_E5M2: 57344.0}
RANGES = np.stack([np.full(32, -1.5), np.linspace(1, 2, 32)]).astype(np.float32)


def quantized(rows: NDArray[np.float32], **how: Any) -> NDArray[Any]:
    return np.asarray(util.quantize_embeddings(rows, **how))


def some_rows(width: int = 32) -> NDArray[np.float32]:
    """Usual rows, and one of zeros."""
    rows: NDArray[np.float32] = np.random.default_rng(1).standard_normal((40, width), np.float32)
    rows[7] = 0
    return rows


def every_size(dtype: DType) -> NDArray[np.float32]:
    """Numbers of every size and sign up to the type's largest, and those in the middle between two of them."""
    rng = np.random.default_rng(2)
    largest = LARGEST.get(dtype, 1e30)
    sizes = (largest * np.exp2(-rng.uniform(0, 60, 4000))).astype(np.float32)
    held: NDArray[np.float32] = torch.from_numpy(sizes).to(FLOAT_TYPES[dtype]).float().numpy()
    between = (held + np.sort(held)[rng.integers(0, len(held), len(held))]) / 2
    sizes = np.concatenate([[0, -0.0, largest], sizes, held, between, np.nextafter(held, 0)])
    rows: NDArray[np.float32] = (sizes * rng.choice([-1, 1], len(sizes))).astype(np.float32)
    return rows[None]


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_floats_are_rounded_as_others_round_them(dtype: DType) -> None:
    rows = every_size(dtype)
    expected = torch.from_numpy(rows).to(FLOAT_TYPES[dtype])

    assert packed(rows, dtype).tobytes() == expected.view(torch.uint8).numpy().tobytes()
    assert np.array_equal(rounded(rows, dtype), expected.float().numpy())


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("dtype", LARGEST)
def test_numbers_that_a_type_can_not_hold_are_refused(dtype: DType) -> None:
    largest = np.array([[0, LARGEST[dtype]], [-LARGEST[dtype], 0]], np.float32)

    assert np.array_equal(rounded(largest, dtype), largest)
    for sign in (1, -1):
        with pytest.raises(InvalidRequest, match=dtype.value):
            packed(sign * largest[:1] * np.float32(1.01), dtype)


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("dtype", [DType.BINARY, DType.UBINARY])
@pytest.mark.parametrize("width", [8, 32, 33])
def test_bits_are_sentence_transformers(dtype: DType, width: int) -> None:
    rows = some_rows(width)
    expected = quantized(rows, precision=dtype.value)
    assert packed(rows, dtype).dtype == expected.dtype
    assert np.array_equal(packed(rows, dtype), expected)


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
def test_integers_by_ranges_are_sentence_transformers(dtype: DType) -> None:
    rows = some_rows()
    expected = quantized(rows, precision=dtype.value, ranges=RANGES)
    assert packed(rows, dtype, RANGES).dtype == expected.dtype
    assert np.array_equal(packed(rows, dtype, RANGES), expected)
    assert not is_by_row(32, RANGES)


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("ranges", [None, RANGES])
def test_integers_by_row_keep_its_direction(ranges: NDArray[np.float32] | None) -> None:
    rows = some_rows(16)  # not as wide as the ranges
    signed, unsigned = packed(rows, DType.INT8, ranges), packed(rows, DType.UINT8, ranges)

    assert is_by_row(16, ranges)
    assert (signed.dtype.name, unsigned.dtype.name) == ("int8", "uint8")
    assert np.array_equal(signed.astype(int) + 128, unsigned)
    assert set(np.abs(signed.astype(int)).max(axis=1)) == {0, 127}
    assert np.abs(signed * scales_of(rows)[:, None] - rows).max() <= scales_of(rows).max() * 0.5001


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("endianness", Endianness)
def test_base64_is_of_the_bytes(dtype: DType, endianness: Endianness) -> None:
    rows, form = some_rows(), RowForm(Encoding.BASE64, dtype, endianness)
    written = [base64.b64decode(json.loads(value)) for value in row_values(rows, form)]

    little = packed(rows, dtype)
    expected = little.byteswap() if endianness is Endianness.BIG else little
    assert written == [row.tobytes() for row in expected]
    assert row_bytes(rows, form).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DType)
def test_lists_have_the_rounded_numbers(dtype: DType) -> None:
    rows = some_rows()
    written = [json.loads(value) for value in row_values(rows, RowForm(dtype=dtype))]

    assert np.array_equal(np.array(written, np.float32), rounded(rows, dtype).astype(np.float32))
    assert {type(number) for row in written for number in row} == ({float} if dtype in FLOAT_TYPES else {int})


def test_rows_that_are_cut_are_not_contiguous() -> None:
    cut = some_rows()[:, :8]
    for dtype in DType:
        assert np.array_equal(packed(cut, dtype), packed(np.ascontiguousarray(cut), dtype))
    assert list(row_values(cut, FLOATS)) == list(row_values(np.ascontiguousarray(cut), FLOATS))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_not_a_number_stays_none(dtype: DType) -> None:
    """What stands for a row that failed, beside numbers that are checked as ever."""
    rows = np.array([[np.nan, 1.0]], np.float32)
    assert np.isnan(rounded(rows, dtype)).tolist() == [[True, False]]
    if dtype in LARGEST:
        with pytest.raises(InvalidRequest):
            packed(np.array([[np.nan, 1e9]], np.float32), dtype)
