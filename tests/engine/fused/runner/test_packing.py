"""A packed block against the plainest reading of engine.fused.model.ops."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.fused.packing import Layout, Packer, Shape, Shapes, layout, views
from engine.types import Batch, OutputKind

SHAPES = Shapes(max_num_tokens=300, max_num_seqs=20, max_seqlen=200, has_token_types=True, max_graph_tokens=300)
PACKER = Packer(vocab_size=100, num_types=2, padding_idx=None, pooling="last")


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    seqlens = draw(st.lists(st.integers(1, 200), min_size=1, max_size=20))
    while sum(seqlens) > SHAPES.max_num_tokens:
        seqlens.pop()
    cu_seqlens = np.cumsum([0, *seqlens], dtype=np.int32)
    numbers = np.random.default_rng(draw(st.integers(0, 1000)))
    token_ids = numbers.integers(0, 6, cu_seqlens[-1], np.int32)
    types = numbers.integers(0, 2, cu_seqlens[-1], np.int32) if draw(st.booleans()) else None
    return Batch("m", OutputKind.POOLED, token_ids, cu_seqlens, types)


def packed(packer: Packer, batch: Batch) -> tuple[NDArray[np.int32], Shape]:
    """Into a block that was in use before."""
    shape = SHAPES.of(batch)
    block = np.full(layout(SHAPES.largest).size, 12345, np.int32)
    packer.write(block, batch, shape)
    return block, shape


def parts(places: Layout) -> list[slice]:
    return [value for field in dataclasses.fields(places) if isinstance(value := getattr(places, field.name), slice)]


@given(batches())
def test_parts_follow_each_other_aligned_and_nothing_behind_them_is_touched(batch: Batch) -> None:
    block, shape = packed(PACKER, batch)
    places = layout(shape)
    for part, following in zip(parts(places), [*parts(places)[1:], slice(places.size, None)], strict=True):
        assert part.start % 32 == 0
        assert part.stop <= following.start
    assert (block[places.size :] == 12345).all()


def positions(ids: list[int], padding_idx: int | None) -> list[int]:
    if padding_idx is None:
        return list(range(len(ids)))
    found, count = [], 0
    for token_id in ids:
        count += token_id != padding_idx
        found.append(count + padding_idx if token_id != padding_idx else padding_idx)
    return found


@given(batches(), st.sampled_from([None, 0, 1]), st.sampled_from(["cls", "last", "mean"]))
def test_the_views_say_what_the_batch_says_and_padding_is_empty(
    batch: Batch, padding_idx: int | None, pooling: str
) -> None:
    packer = dataclasses.replace(PACKER, padding_idx=padding_idx, pooling=pooling)
    block, shape = packed(packer, batch)
    inputs = views(torch.from_numpy(block), shape)
    num_tokens, num_seqs = shape.num_tokens, shape.num_seqs
    ids, bounds = batch.token_ids.tolist(), batch.cu_seqlens.tolist()
    sequences = [ids[start:end] for start, end in itertools.pairwise(bounds)]
    more_tokens, more_seqs = [0] * (num_tokens - len(ids)), num_seqs - len(sequences)

    assert inputs.token_ids.tolist() == ids + more_tokens
    assert inputs.positions.tolist() == [
        *itertools.chain(*(positions(own, padding_idx) for own in sequences)),
        *more_tokens,
    ]
    if batch.token_type_ids is None:
        assert inputs.token_type_ids is None
    else:
        assert inputs.token_type_ids is not None
        assert inputs.token_type_ids.tolist() == batch.token_type_ids.tolist() + more_tokens
    assert inputs.cu_seqlens.tolist() == bounds + [len(ids)] * more_seqs
    stands_for = [end - 1 for end in bounds[1:]] if pooling == "last" else bounds[:-1]
    assert inputs.pooled.tolist() == stands_for + [0] * more_seqs
    assert all(part.dtype == torch.int32 for part in (inputs.token_ids, inputs.cu_seqlens, inputs.tiles.table))
    check_tiles(inputs.tiles.table, bounds, block=inputs.tiles.block)
    check_pooled_tiles(inputs.pooled_tiles.table, bounds, stands_for)
    assert len(inputs.pooled_tiles.table) == num_seqs


def check_tiles(table: torch.Tensor, bounds: list[int], *, block: int) -> None:
    """Each token is a query once, with the keys of its own sequence."""
    seen: list[int] = []
    for first, num_queries, position, first_key, num_keys in table.tolist():
        assert 0 <= num_queries <= block
        if num_queries:
            assert (first_key, first_key + num_keys) in itertools.pairwise(bounds)
            assert first == first_key + position
            assert first + num_queries <= first_key + num_keys
            seen += range(first, first + num_queries)
    assert sorted(seen) == list(range(bounds[-1]))


def check_pooled_tiles(table: torch.Tensor, bounds: list[int], pooled: list[int]) -> None:
    expected = [
        [number, 1, token - start, start, end - start]
        for number, (token, start, end) in enumerate(zip(pooled, bounds, bounds[1:], strict=False))
    ]
    assert table[: len(expected)].tolist() == expected
    assert not table[len(expected) :].any()


def made(token_ids: list[int], cu_seqlens: list[int], types: list[int] | None = None) -> Batch:
    arrays = [None if numbers is None else np.array(numbers, np.int32) for numbers in (token_ids, cu_seqlens, types)]
    return Batch("m", OutputKind.POOLED, *arrays)  # type: ignore[arg-type]


@pytest.mark.holds("A slot is reused only after its batch was collected")
@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (made([1, 100], [0, 2]), "a token id is not one of the 100"),
        (made([1, -1], [0, 2]), "a token id"),
        (made([1, 2], [0, 2], [0, 2]), "a token type is not one of the 2"),
        (made([1, 2], [0, 2], [-1, 0]), "a token type"),
        (made([1, 2], [0, 0, 2]), "without tokens"),
        (made([], [0]), "without tokens"),
    ],
)
def test_numbers_beyond_a_table_are_refused(batch: Batch, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        packed(PACKER, batch)


def test_types_that_the_model_ignores_may_be_anything() -> None:
    packer = dataclasses.replace(PACKER, num_types=0)
    shapes = dataclasses.replace(SHAPES, has_token_types=False)
    batch = made([1, 2], [0, 2], [7, -1])
    block = np.zeros(layout(shapes.largest).size, np.int32)
    packer.write(block, batch, shapes.of(batch))
    assert views(torch.from_numpy(block), shapes.of(batch)).token_type_ids is None


def test_arrays_that_may_not_be_written_are_taken() -> None:
    batch = made([1, 2, 3], [0, 1, 3], [0, 1, 1])
    for array in (batch.token_ids, batch.cu_seqlens, batch.token_type_ids):
        assert array is not None
        array.flags.writeable = False
    packed(PACKER, batch)
