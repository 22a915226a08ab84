"""Residual + hidden and its norm, against the reference."""

import pytest
import torch
from torch import Tensor

from engine.fused.kernels import TritonOps
from engine.fused.model.ops import NormedRows, NormOutputs
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.kernels.samples import DTYPES, Samples, assert_near, assert_quantized_alike

ALL = NormOutputs.RESIDUAL | NormOutputs.ROWS | NormOutputs.QUANTIZED
WIDTHS = (384, 768, 1000, 2560)
KINDS = (("rms", False), ("layer", True), ("layer", False))


def total_of(normed: NormedRows) -> Tensor:
    assert normed.residual is not None
    return normed.residual


@pytest.mark.parametrize("outputs", [NormOutputs.RESIDUAL, NormOutputs.ROWS, NormOutputs.QUANTIZED])
@pytest.mark.parametrize("has_residual", [True, False])
def test_what_is_not_asked_for_is_not_given(outputs: NormOutputs, has_residual: bool) -> None:
    samples = Samples(8)
    hidden = samples.rows(3, 384)
    residual = samples.rows(3, 384) if has_residual else None
    normed = TritonOps().add_norm(hidden, residual, samples.norm(384, "rms"), outputs=outputs)
    given = {
        NormOutputs.RESIDUAL: normed.residual,
        NormOutputs.ROWS: normed.rows,
        NormOutputs.QUANTIZED: normed.quantized,
    }
    assert {part for part, value in given.items() if value is not None} == {outputs}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "has_bias"), KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_sum_and_norm(width: int, kind: str, has_bias: bool, dtype: torch.dtype) -> None:
    samples = Samples(width)
    hidden, residual = samples.rows(5, width, dtype), samples.rows(5, width, dtype)
    norm = samples.norm(width, kind, has_bias=has_bias)
    actual = TritonOps().add_norm(hidden, residual, norm, outputs=ALL)
    expected = ReferenceOps().add_norm(hidden, residual, norm, outputs=ALL)
    assert torch.equal(total_of(actual), total_of(expected))
    assert actual.rows is not None
    assert expected.rows is not None
    assert_near(actual.rows, expected.rows)
    assert actual.quantized is not None
    assert expected.quantized is not None
    assert_quantized_alike(actual.quantized, expected.quantized)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_residual", [True, False])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_delta_is_normalised_before_it_is_added(kind: str, has_residual: bool, dtype: torch.dtype) -> None:
    samples = Samples(7)
    hidden, residual = samples.rows(4, 768, dtype) * 30, samples.rows(4, 768, dtype) if has_residual else None
    hidden_norm, norm = samples.norm(768, kind, has_bias=kind == "layer", eps=1e-3), samples.norm(768, "rms")
    actual = TritonOps().add_norm(hidden, residual, norm, hidden_norm=hidden_norm)
    expected = ReferenceOps().add_norm(hidden, residual, norm, hidden_norm=hidden_norm)
    assert_near(total_of(actual), total_of(expected))
    assert actual.rows is not None
    assert expected.rows is not None
    # A total that fell the other way is off by one rounding before the norm, and once more behind it.
    torch.testing.assert_close(actual.rows.float(), expected.rows.float(), rtol=2.0**-6, atol=2.0**-9)
    assert actual.quantized is None


def test_without_residual_the_delta_is_the_total() -> None:
    hidden = Samples(1).rows(3, 384)
    normed = TritonOps().add_norm(
        hidden, None, Samples(2).norm(384, "layer", has_bias=True), outputs=NormOutputs.RESIDUAL
    )
    assert normed.residual is hidden
    assert normed.rows is None


def test_rows_may_lie_apart() -> None:
    samples = Samples(3)
    hidden, residual = samples.rows(6, 1000)[:, 100:868], samples.rows(12, 768)[::2]
    norm = samples.norm(768, "layer", has_bias=True)
    actual = TritonOps().add_norm(hidden, residual, norm)
    expected = ReferenceOps().add_norm(hidden, residual, norm)
    assert torch.equal(total_of(actual), total_of(expected))
    assert actual.rows is not None
    assert expected.rows is not None
    assert_near(actual.rows, expected.rows)


@pytest.mark.holds("Padding never affects a row")
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_row_of_nan_stays_one_and_spoils_no_other(kind: str) -> None:
    samples = Samples(4)
    hidden, residual = samples.rows(6, 384), samples.rows(6, 384)
    norm = samples.norm(384, kind)
    clean = TritonOps().add_norm(hidden, residual, norm, outputs=ALL)
    hidden[2, 17] = torch.nan
    spoilt = TritonOps().add_norm(hidden, residual, norm, outputs=ALL)
    assert clean.rows is not None
    assert spoilt.rows is not None
    assert clean.quantized is not None
    assert spoilt.quantized is not None
    others = [0, 1, 3, 4, 5]
    assert torch.equal(spoilt.rows[others], clean.rows[others])
    assert torch.equal(spoilt.quantized.values.float()[others], clean.quantized.values.float()[others])
    assert torch.equal(spoilt.quantized.scales[others], clean.quantized.scales[others])
    assert spoilt.rows[2].isnan().all()
    assert spoilt.quantized.scales[2].isnan().all()


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_rows_of_zeros(kind: str) -> None:
    samples = Samples(5)
    zeros = torch.zeros_like(samples.rows(2, 1000))
    normed = TritonOps().add_norm(zeros, zeros, samples.norm(1000, kind), outputs=ALL)
    assert normed.rows is not None
    assert normed.quantized is not None
    assert not normed.rows.any()
    assert not normed.quantized.values.float().any()
    assert (normed.quantized.scales == 1).all()
