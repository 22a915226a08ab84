"""What becomes of an engine's rows before they are written."""

import asyncio

import numpy as np
import pytest

from engine.types import OutputKind, Rows
from server.requests.work import strongest
from tests.server.edge import served_model
from tests.server.requests.embed_requests import a_request, embed

ENTRIES = np.array([[2, 0.5], [3, -0.9], [7, 0.7], [1, 0.4], [4, 0.2], [5, 0.2], [6, 0.2]], np.float32)
SPARSE = Rows(ENTRIES, np.array([0, 3, 3, 7], np.int32))


@pytest.mark.parametrize(
    ("most", "kept", "offsets"),
    [
        (1, [3, 1], [0, 1, 1, 2]),
        (2, [3, 7, 1, 4], [0, 2, 2, 4]),  # of equal weights the first
        (9, [2, 3, 7, 1, 4, 5, 6], [0, 3, 3, 7]),
    ],
)
def test_the_strongest_entries_of_each_sparse_row_are_kept(most: int, kept: list[int], offsets: list[int]) -> None:
    dense = Rows(np.ones((3, 8), np.float32))
    cut = asyncio.run(strongest({OutputKind.SPARSE: SPARSE, OutputKind.POOLED: dense}, most))

    assert cut[OutputKind.POOLED] is dense
    found = cut[OutputKind.SPARSE]
    assert found.values[:, 0].tolist() == kept
    assert found.values.dtype == np.float32
    assert found.offsets is not None
    assert found.offsets.dtype == np.int32
    assert found.offsets.tolist() == offsets


def test_a_models_max_active_dims_cuts_its_sparse_rows() -> None:
    model = served_model(outputs=OutputKind.SPARSE, max_active_dims=1)
    request = a_request(model=model, items=["a", "b", "c"], outputs=OutputKind.SPARSE)

    embedded, _ = embed(request, managers__rows=lambda kind, submission: SPARSE)

    assert embedded.rows[:, 0].tolist() == [3, 1]
    assert embedded.offsets is not None
    assert embedded.offsets.tolist() == [0, 1, 1, 2]
