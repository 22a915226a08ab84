"""Models that make whole numbers of their rows, as pplx-embed: against a reading of its authors' st_quantize.py.

Int8TanhQuantizer there gives 127 times the hyperbolic tangent, rounded by torch and kept from -128 to 127;
PackedBinaryQuantizer a bit for each number that is not below 0.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.types import Rows
from server.dialects.row_answers import DType, RowForm, packed, scale_of
from server.requests.work import EmbedRequest
from server.supervisor.model_files import ranges_of_whole_numbers
from tests.server.edge import DIMENSIONS, served_model
from tests.server.requests.embed_requests import a_request, embed

_Rows = NDArray[np.float32]
POOLED: _Rows = np.concatenate(
    [
        np.random.default_rng(1).standard_normal((30, DIMENSIONS), np.float32),
        np.random.default_rng(2).standard_normal((9, DIMENSIONS), np.float32) * np.float32(0.003),  # most become 0
        np.full((1, DIMENSIONS), 20, np.float32),
    ]
)
ITEMS = [chr(ord("a") + number) for number in range(len(POOLED))]


def as_its_code(rows: _Rows) -> _Rows:
    found: _Rows = torch.clamp(torch.round(torch.tanh(torch.from_numpy(rows)) * 127), -128, 127).numpy()
    return found


def request_of(**fields: Any) -> EmbedRequest:
    ranges = np.frombuffer(ranges_of_whole_numbers(DIMENSIONS).numbers, "<f4").reshape(2, -1)
    return a_request(model=served_model(rounds=True, ranges=ranges), items=ITEMS, **fields)


def rows_of(request: EmbedRequest) -> _Rows:
    embedded, _ = embed(request, managers__rows=lambda kind, submission: Rows(POOLED))
    return embedded.rows


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize("width", [None, 3])
def test_rows_are_rounded_after_they_are_cut(width: int | None) -> None:
    request = request_of(dimensions=width)
    rows, expected = rows_of(request), as_its_code(POOLED[:, :width])

    assert np.array_equal(rows, expected)
    assert (expected[:30] != 0).any()
    assert expected.max() == 127
    for dtype, shift in ((DType.INT8, 0), (DType.UINT8, 128)):
        assert np.array_equal(packed(rows, dtype, request.ranges), expected + shift)
        assert scale_of(rows.shape[1], RowForm(dtype=dtype), request.ranges) == b"ranges"
    bits = np.packbits(POOLED[:, :width] >= 0, axis=-1)  # of numbers that are 0 when they are rounded, too
    assert np.array_equal(packed(rows, DType.UBINARY, request.ranges), bits)


def test_rows_of_length_1_are_made_of_the_whole_numbers() -> None:
    request = request_of(normalize=True)
    expected = as_its_code(POOLED)
    lengths = np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)

    assert request.ranges is None
    assert np.abs(rows_of(request) - expected / lengths).max() < 1e-6


def test_other_models_keep_their_rows() -> None:
    embedded, _ = embed(a_request(items=ITEMS), managers__rows=lambda kind, submission: Rows(POOLED))
    assert np.array_equal(embedded.rows, POOLED)
