"""Sizes that batches are padded to."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fused.packing import Shapes, layout, tile_table, token_buckets
from engine.types import Batch, OutputKind

LIMITS = [
    (16_384, 1024, 512),
    (16_384, 1024, 8192),
    (32_768, 2048, 32_768),
    (1000, 5, 1000),
    (8, 3, 8),
    (50_000, 64, 9),
]


def shapes(max_num_tokens: int, max_num_seqs: int, max_seqlen: int, *, max_graph_tokens: int = 1 << 30) -> Shapes:
    return Shapes(
        max_num_tokens=max_num_tokens,
        max_num_seqs=max_num_seqs,
        max_seqlen=max_seqlen,
        has_token_types=True,
        max_graph_tokens=max_graph_tokens,
    )


def batch_of(seqlens: list[int], *, has_types: bool = False, outputs: OutputKind = OutputKind.POOLED) -> Batch:
    cu_seqlens = np.cumsum([0, *seqlens], dtype=np.int32)
    ids = np.ones(cu_seqlens[-1], np.int32)
    return Batch("m", outputs, ids, cu_seqlens, ids if has_types else None)


def test_buckets_end_at_the_most_there_may_be() -> None:
    assert token_buckets(100) == (16, 32, 64, 100)
    assert token_buckets(16) == (16,)
    assert token_buckets(7) == (7,)
    assert token_buckets(16_384)[-3:] == (8192, 12_288, 16_384)
    assert token_buckets(32_768)[-5:] == (16_384, 20_480, 24_576, 28_672, 32_768)
    assert token_buckets(21_000)[-3:] == (16_384, 20_480, 21_000)


@pytest.mark.parametrize("limits", LIMITS)
def test_buckets_ascend_and_waste_at_most_half(limits: tuple[int, int, int]) -> None:
    buckets = token_buckets(limits[0])
    assert list(buckets) == sorted(set(buckets))
    assert all(larger <= 2 * smaller for smaller, larger in itertools.pairwise(buckets))


@given(st.data())
def test_a_shape_holds_its_batch_and_the_largest_holds_any(data: st.DataObject) -> None:
    max_num_tokens, max_num_seqs, max_seqlen = data.draw(st.sampled_from(LIMITS))
    some = shapes(max_num_tokens, max_num_seqs, max_seqlen, max_graph_tokens=data.draw(st.sampled_from([0, 2048])))
    seqlens = data.draw(st.lists(st.integers(1, min(max_seqlen, 3000)), min_size=1, max_size=min(max_num_seqs, 40)))
    while sum(seqlens) > max_num_tokens:
        seqlens.pop()
    made = batch_of(seqlens, has_types=data.draw(st.booleans()))
    shape, largest = some.of(made), some.largest
    assert made.num_tokens <= shape.num_tokens <= largest.num_tokens < max_num_tokens + 16
    assert shape.num_tokens % 16 == 0
    assert made.num_seqs <= shape.num_seqs <= min(largest.num_seqs, shape.num_tokens, max_num_seqs)
    assert len(tile_table(made.cu_seqlens, block=shape.block)) <= shape.num_tiles
    assert shape.has_types == (made.token_type_ids is not None)
    assert layout(shape).size <= layout(largest).size


@given(st.lists(st.integers(1, 64), min_size=1, max_size=64), st.lists(st.integers(1, 64), min_size=1, max_size=64))
def test_the_largest_of_a_bucket_has_the_shape_of_the_others(first: list[int], second: list[int]) -> None:
    """Few shapes: batches of about as many tokens and sequences share theirs, whatever the lengths, up to the tiles."""
    some = shapes(16_384, 1024, 512)
    one, other = some.of(batch_of(first)), some.of(batch_of(second))
    if (one.num_tokens, one.num_seqs, one.block) == (other.num_tokens, other.num_seqs, other.block):
        assert one == other


def test_usual_work_has_few_shapes() -> None:
    """As many graphs as there are shapes are recorded and kept."""
    some, numbers = shapes(16_384, 1024, 512), np.random.default_rng(0)
    seen = set()
    for _ in range(2000):
        lengths = numbers.lognormal(4, 1, 1024).clip(1, 512).astype(int)
        ends = np.cumsum(lengths)
        size = np.searchsorted(ends, numbers.integers(16, 16_384), side="right")
        seen.add(some.of(batch_of(lengths[: max(1, size)].tolist())))
    assert len(seen) <= 80


def test_batches_without_a_graph_are_padded_to_the_next_16_tokens() -> None:
    some = shapes(16_384, 64, 512, max_graph_tokens=2048)
    largest, larger = some.of(batch_of([512, 512, 512, 500])), some.of(batch_of([512, 512, 512, 512, 52]))
    assert (largest.num_tokens, largest.is_worth_a_graph) == (2048, True)
    assert (larger.num_tokens, larger.is_worth_a_graph) == (2112, False)
    of_tokens = some.of(batch_of([100], outputs=OutputKind.TOKENS))
    assert (of_tokens.num_tokens, of_tokens.is_worth_a_graph) == (112, False)


def test_types_that_the_model_does_not_tell_apart_are_no_part_of_the_shape() -> None:
    some = Shapes(max_num_tokens=64, max_num_seqs=8, max_seqlen=32, has_token_types=False, max_graph_tokens=64)
    assert some.of(batch_of([3], has_types=True)) == some.of(batch_of([3]))


@pytest.mark.parametrize("seqlens", [[33], [30, 30, 5], [1] * 9])
def test_what_is_over_a_limit_is_refused(seqlens: list[int]) -> None:
    with pytest.raises(ValueError, match="limits"):
        shapes(64, 8, 32).of(batch_of(seqlens))
