"""The two ends of a forward, looking up rows and taking means of sequences, against the reference."""

import pytest
import torch
from torch import Tensor

from engine.fused.kernels import TritonOps, embedding_pooling
from engine.fused.model.ops import EmbeddingTables, Inputs, Tiles
from engine.fused.model.reference import ReferenceOps
from tests.engine.fused.kernels.samples import DEVICE, DTYPES, Samples, assert_near
from tests.tiers import full_but


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
    assert_near(TritonOps().embed(inputs, embedded), ReferenceOps().embed(inputs, embedded))


def test_words_alone_come_as_they_are() -> None:
    samples = Samples(1)
    words, ids = samples.rows(99, 384, torch.bfloat16), samples.numbers(7, 99)
    looked_up = TritonOps().embed(inputs_of(ids, ids, None), EmbeddingTables(words, None, None, 1.0))
    assert torch.equal(looked_up, words[ids.long()])


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
