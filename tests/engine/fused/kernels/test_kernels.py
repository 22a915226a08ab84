"""Each kernel but attention, against the reference: activations, quantizing, norms, look-ups, means and rotation."""

import pytest
import torch
from torch import Tensor

from engine.fused.kernels import TritonOps, embedding_pooling
from engine.fused.model.ops import EmbeddingTables, Heads, Inputs, NormedRows, NormOutputs, Tiles
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.kernels.samples import DEVICE, DTYPES, RELATIVE, Samples, assert_as_reference, assert_near
from tests.tiers import full_but

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [384, 1000])
def test_activations(width: int, activation: str, is_gated: bool, dtype: torch.dtype) -> None:
    rows = Samples(width).rows(3, 2 * width if is_gated else width, dtype) * 3
    assert_as_reference("activate", rows, activation, is_gated=is_gated, is_quantized=False)


@pytest.mark.parametrize("dtype", full_but(DTYPES[:1], DTYPES))
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1152, 3072, 5000, 16400])  # in one block, in three, and more than are held
def test_quantized_activations(width: int, activation: str, is_gated: bool, dtype: torch.dtype) -> None:
    rows = Samples(width).rows(2, 2 * width if is_gated else width, dtype) * 3
    assert_as_reference("activate", rows, activation, is_gated=is_gated, is_quantized=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 384, 4096, 20000])
def test_quantized_rows(width: int, dtype: torch.dtype) -> None:
    assert_as_reference("quantize", Samples(width).rows(3, width, dtype))


@pytest.mark.parametrize("width", [256, 20480])
def test_numbers_of_float8_come_back_as_they_were(width: int) -> None:
    """Whatever their scale, so long as it is a power of two."""
    finite = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0).to(DEVICE)
    rows = finite.repeat(3, width // 256) * torch.tensor([[1.0], [2.0**-30], [2.0**40]], device=DEVICE)
    quantized = TritonOps().quantize(rows)
    assert torch.equal(quantized.scales, torch.tensor([[1.0], [2.0**-30], [2.0**40]], device=DEVICE))
    assert torch.equal(quantized.values.float() * quantized.scales, rows)


def test_activated_rows_may_lie_apart() -> None:
    rows = Samples(3).rows(8, 1000)[::2, 8:776]
    for is_gated in (False, True):
        assert_as_reference("activate", rows, "silu", is_gated=is_gated, is_quantized=False)
    assert_as_reference("quantize", rows)


@pytest.mark.parametrize("width", [384, 17000])
def test_a_quantized_row_of_nan_stays_one_and_spoils_no_other(width: int) -> None:
    rows = Samples(4).rows(4, width)
    clean = TritonOps().quantize(rows)
    rows[1, 300] = torch.nan
    spoilt = TritonOps().quantize(rows)
    others = [0, 2, 3]
    assert torch.equal(spoilt.values.float()[others], clean.values.float()[others])
    assert torch.equal(spoilt.scales[others], clean.scales[others])
    assert spoilt.scales[1].isnan().all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_survives_activation(activation: str) -> None:
    rows = Samples(5).rows(2, 64)
    rows[0, 3] = torch.nan
    activated = TritonOps().activate(rows, activation, is_gated=False, is_quantized=False)
    assert isinstance(activated, torch.Tensor)
    assert activated.isnan().nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize("width", [384, 17000])
def test_rows_of_zeros_and_of_almost_nothing(width: int) -> None:
    rows = torch.zeros(3, width, device=DEVICE)
    rows[1, 5] = 2.0**-126
    rows[2] = 1e-3
    quantized = TritonOps().quantize(rows)
    assert quantized.scales[0] == 1
    restored = quantized.values.float() * quantized.scales
    assert torch.equal(restored[:2], rows[:2])
    torch.testing.assert_close(restored[2], rows[2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_far_from_zero(activation: str) -> None:
    rows = torch.linspace(-200, 200, 512, device=DEVICE)[None]
    assert_as_reference("activate", rows, activation, is_gated=False, is_quantized=False)


ALL = NormOutputs.RESIDUAL | NormOutputs.ROWS | NormOutputs.QUANTIZED
WIDTHS = (384, 768, 1000, 2560)
KINDS = (("rms", False), ("layer", True), ("layer", False))


def parts_of(normed: NormedRows) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, and numbers and scales of quantized ones."""
    assert normed.rows is not None
    assert normed.quantized is not None
    return normed.rows, normed.quantized.values.float(), normed.quantized.scales


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
    assert_as_reference("add_norm", hidden, residual, samples.norm(width, kind, has_bias=has_bias), outputs=ALL)


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


def test_summed_rows_may_lie_apart() -> None:
    samples = Samples(3)
    hidden, residual = samples.rows(6, 1000)[:, 100:868], samples.rows(12, 768)[::2]
    assert_as_reference("add_norm", hidden, residual, samples.norm(768, "layer", has_bias=True))


@pytest.mark.holds("Padding never affects a row")
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_normed_row_of_nan_stays_one_and_spoils_no_other(kind: str) -> None:
    samples = Samples(4)
    hidden, residual = samples.rows(6, 384), samples.rows(6, 384)
    norm = samples.norm(384, kind)
    clean = TritonOps().add_norm(hidden, residual, norm, outputs=ALL)
    hidden[2, 17] = torch.nan
    spoilt = TritonOps().add_norm(hidden, residual, norm, outputs=ALL)
    others = [0, 1, 3, 4, 5]
    for part, expected in zip(parts_of(spoilt), parts_of(clean), strict=True):
        assert torch.equal(part[others], expected[others])
    rows, _, scales = parts_of(spoilt)
    assert rows[2].isnan().all()
    assert scales[2].isnan().all()


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms_of_zeros(kind: str) -> None:
    samples = Samples(5)
    zeros = torch.zeros_like(samples.rows(2, 1000))
    normed = TritonOps().add_norm(zeros, zeros, samples.norm(1000, kind), outputs=ALL)
    rows, values, scales = parts_of(normed)
    assert not rows.any()
    assert not values.any()
    assert (scales == 1).all()


def inputs_of(token_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Inputs:
    nothing = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    tiles = Tiles(nothing.view(0, 5), 64)
    return Inputs(token_ids, positions, token_type_ids, nothing, nothing, tiles, tiles)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [384, 1000])
@pytest.mark.parametrize("tables", ["words", "words and positions", "all", "types by default"])
def test_looked_up_rows(tables: str, width: int, dtype: torch.dtype) -> None:
    samples = Samples(width)
    positions = None if tables == "words" else samples.rows(9, width, dtype)
    types = samples.rows(2, width, dtype) if tables in ("all", "types by default") else None
    ids, numbers = samples.numbers(5, 99), samples.numbers(5, 9)
    inputs = inputs_of(ids, numbers, samples.numbers(5, 2) if tables == "all" else None)
    embedded = EmbeddingTables(samples.rows(99, width, dtype), positions, types, width**0.5)
    assert_as_reference("embed", inputs, embedded)


def test_words_alone_come_as_they_are() -> None:
    samples = Samples(1)
    words, ids = samples.rows(99, 384, torch.bfloat16), samples.numbers(7, 99)
    looked_up = TritonOps().embed(inputs_of(ids, ids, None), EmbeddingTables(words, None, None, 1.0))
    assert torch.equal(looked_up, words[ids.long()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 384, 1000, 2048])
def test_gathered_rows(width: int, dtype: torch.dtype) -> None:
    """Out of wider ones, one of them NaN; padding is left alone."""
    rows = Samples(width).rows(5, width + 32, dtype)[:, 32:]
    rows[3] = torch.nan
    places = torch.tensor([0, 1, 2, 0, 1, 4, 4, -1, -1], dtype=torch.int32, device=DEVICE)
    gathered, expected = TritonOps().gather(rows, places), ReferenceOps().gather(rows, places)
    assert gathered.shape == expected.shape == (9, width)
    assert torch.equal(gathered[:7], expected[:7])
    assert torch.equal(expected[:7], rows[[0, 1, 2, 0, 1, 4, 4]])


@pytest.mark.parametrize("dtype", full_but(DTYPES[:1], DTYPES))
@pytest.mark.parametrize(
    "lengths",
    [[5], [64], [65, 0, 0], [0, 1, 63, 64, 65, 128, 2, 0, 200, 0], [1] * 20, [0, 0], [2048 + 70, 3]],
    ids=lambda lengths: f"{len(lengths)} of {sum(lengths)}",
)
def test_means(lengths: list[int], dtype: torch.dtype) -> None:
    num_padded = 13
    rows = Samples(len(lengths)).rows(sum(lengths) + num_padded, 100, dtype)
    rows[sum(lengths) :] = torch.nan
    cu_seqlens = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)
    actual, expected = TritonOps().pool(rows, cu_seqlens), ReferenceOps().pool(rows, cu_seqlens)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def test_more_sequences_than_are_looked_through_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_pooling, "_SEQUENCES", 8)
    lengths = [2, 0, 70, 1] * 6
    rows = Samples(6).rows(sum(lengths), 16)
    cu_seqlens = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)
    torch.testing.assert_close(TritonOps().pool(rows, cu_seqlens), ReferenceOps().pool(rows, cu_seqlens))


def test_long_sums_lose_nothing() -> None:
    """All of one sign, so that float32 added one by one would be off by 1e-4."""
    rows = Samples(7).rows(8192, 16).abs() + 100
    cu_seqlens = torch.tensor([0, 8192], dtype=torch.int32, device=DEVICE)
    expected = rows.double().mean(dim=0, keepdim=True)
    assert float((TritonOps().pool(rows, cu_seqlens) / expected - 1).abs().max()) < 3e-7


def test_a_mean_does_not_depend_on_where_its_sequence_lies() -> None:
    rows = Samples(8).rows(500, 32)
    alone = TritonOps().pool(rows[77:400], torch.tensor([0, 323], dtype=torch.int32, device=DEVICE))
    among = TritonOps().pool(rows, torch.tensor([0, 77, 400, 500], dtype=torch.int32, device=DEVICE))
    assert torch.equal(among[1], alone[0])


def test_nan_in_one_sequence_spoils_no_other() -> None:
    rows = Samples(9).rows(200, 32)
    cu_seqlens = torch.tensor([0, 90, 110, 200], dtype=torch.int32, device=DEVICE)
    clean = TritonOps().pool(rows, cu_seqlens)
    rows[100] = torch.nan
    spoilt = TritonOps().pool(rows, cu_seqlens)
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])
    assert spoilt[1].isnan().all()


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


def test_rotated_rows_may_lie_apart() -> None:
    samples = Samples(3)
    whole = samples.rows(8, 1000)
    before = whole.clone()
    part = whole[::2, 40:680]
    heads = Heads(4, 2, 64, samples.norm(64, "rms"), None)
    assert_rotated_alike(part, samples.numbers(4, NUM_POSITIONS), angles_of(64).to(whole.device), heads)
    assert torch.equal(whole[1::2], before[1::2])
    assert torch.equal(whole[:, :40], before[:, :40])


def test_a_rotated_row_of_nan_spoils_no_other() -> None:
    samples = Samples(4)
    rows, positions = samples.rows(3, 6 * 64), samples.numbers(3, NUM_POSITIONS)
    heads = Heads(4, 2, 64, samples.norm(64, "rms"), samples.norm(64, "rms"))
    clean, spoilt = rows.clone(), rows.clone()
    spoilt[1] = torch.nan
    for part in (clean, spoilt):
        TritonOps().rotate(part, positions, angles_of(64).to(rows.device), heads)
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])
    assert spoilt[1].isnan().all()
