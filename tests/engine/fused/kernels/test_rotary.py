"""Norms and rotation of queries and keys in place, against the reference."""

import pytest
import torch
from torch import Tensor

from engine.fused.kernels import TritonOps
from engine.fused.model.ops import Heads
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.kernels.samples import DTYPES, RELATIVE, Samples
from tests.tiers import full_but

NUM_POSITIONS = 50


def angles_of(rotated: int) -> Tensor:
    angles = torch.arange(NUM_POSITIONS)[:, None] / 10000 ** (torch.arange(rotated // 2) / (rotated // 2))
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def assert_rotated_alike(rows: Tensor, positions: Tensor, angles: Tensor | None, heads: Heads) -> None:
    """And what follows queries and keys is not touched."""
    expected, before = rows.clone(), rows.clone()
    TritonOps().rotate(rows, positions, angles, heads)
    ReferenceOps().rotate(expected, positions, angles, heads)
    tolerance = RELATIVE[rows.dtype]  # of a sum of two numbers that may cancel each other
    torch.testing.assert_close(rows, expected, rtol=tolerance, atol=tolerance / 8)
    used = (heads.num_query_heads + heads.num_key_heads) * heads.head_dim
    assert torch.equal(rows[:, used:], before[:, used:])


@pytest.mark.parametrize("dtype", full_but(DTYPES[:1], DTYPES))
@pytest.mark.parametrize("normed", ["both", "neither", "queries", "keys"])
@pytest.mark.parametrize("rotated", [64, 48, None])
@pytest.mark.parametrize(("num_query", "num_key"), [(4, 2), (9, 9), (5, 0), (0, 3)])
def test_norms_and_rotation(num_query: int, num_key: int, rotated: int | None, normed: str, dtype: torch.dtype) -> None:
    samples = Samples(num_query)
    rows = samples.rows(3, (num_query + 2 * num_key + 1) * 64, dtype)
    query_norm = samples.norm(64, "rms") if normed in ("both", "queries") else None
    key_norm = samples.norm(64, "rms", eps=1e-2) if normed in ("both", "keys") else None
    angles = None if rotated is None else angles_of(rotated).to(rows.device)
    heads = Heads(num_query, num_key, 64, query_norm, key_norm)
    assert_rotated_alike(rows, samples.numbers(3, NUM_POSITIONS), angles, heads)


@pytest.mark.parametrize("dim", [32, 80, 96, 128, 256])
def test_heads_of_any_size(dim: int) -> None:
    samples = Samples(dim)
    norm = samples.norm(dim, "rms")
    rows = samples.rows(4, 8 * dim)
    angles = angles_of(dim).to(rows.device)
    assert_rotated_alike(rows, samples.numbers(4, NUM_POSITIONS), angles, Heads(4, 2, dim, norm, norm))


def test_rows_may_lie_apart() -> None:
    samples = Samples(3)
    whole = samples.rows(8, 1000)
    before = whole.clone()
    part = whole[::2, 40:680]
    heads = Heads(4, 2, 64, samples.norm(64, "rms"), None)
    assert_rotated_alike(part, samples.numbers(4, NUM_POSITIONS), angles_of(64).to(whole.device), heads)
    assert torch.equal(whole[1::2], before[1::2])
    assert torch.equal(whole[:, :40], before[:, :40])


def test_a_row_of_nan_spoils_no_other() -> None:
    samples = Samples(4)
    rows, positions = samples.rows(3, 6 * 64), samples.numbers(3, NUM_POSITIONS)
    heads = Heads(4, 2, 64, samples.norm(64, "rms"), samples.norm(64, "rms"))
    clean, spoilt = rows.clone(), rows.clone()
    spoilt[1] = torch.nan
    for part in (clean, spoilt):
        TritonOps().rotate(part, positions, angles_of(64).to(rows.device), heads)
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])
    assert spoilt[1].isnan().all()
