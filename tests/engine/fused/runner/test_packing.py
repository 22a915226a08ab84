"""A packed block against the plainest reading of engine.fused.model.ops, and the sizes that batches are padded to."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.fused.packing import (
    Layout,
    Packer,
    Shape,
    Shapes,
    layout,
    pooled_tile_table,
    tile_table,
    token_buckets,
    views,
)
from engine.types import Batch, OutputKind
from wire.parts import EXPANSION_TOKEN, PROMPT_TOKEN

OUTPUTS = OutputKind.POOLED | OutputKind.TOKENS
SHAPES = Shapes(
    max_num_tokens=300, max_num_seqs=20, max_seqlen=200, has_token_types=True, max_graph_tokens=300, outputs=OUTPUTS
)
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


@st.composite
def sharing(draw: st.DrawFn) -> Batch:
    """The same, sequences beginning as the one before does."""
    made = draw(batches())
    bounds = made.cu_seqlens.tolist()
    token_ids, types = made.token_ids.copy(), made.token_type_ids
    shared = [0]
    for (before, start), end in zip(itertools.pairwise(bounds[:-1]), bounds[2:], strict=True):
        shared.append(draw(st.integers(0, min(start - before, end - start - 1))))
        for ids in (token_ids, types):
            if ids is not None:
                ids[start : start + shared[-1]] = ids[before : before + shared[-1]]
    return dataclasses.replace(made, token_ids=token_ids, shared=np.array(shared, np.int32))


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
    tiles = tile_table(batch.cu_seqlens, block=inputs.tiles.block)
    pooled_tiles = pooled_tile_table(batch.cu_seqlens, np.array(stands_for))
    for table, own in ((inputs.tiles.table, tiles), (inputs.pooled_tiles.table, pooled_tiles)):
        assert table[: len(own)].tolist() == own.tolist()
        assert not table[len(own) :].any()
    assert len(inputs.pooled_tiles.table) == num_seqs


@given(sharing(), st.sampled_from([None, 0, 1]), st.sampled_from(["cls", "last", "mean"]))
def test_of_shared_tokens_one_is_packed_and_the_others_have_its_place(
    batch: Batch, padding_idx: int | None, pooling: str
) -> None:
    packer = dataclasses.replace(PACKER, padding_idx=padding_idx, pooling=pooling)
    whole, (block, shape) = packed(packer, dataclasses.replace(batch, shared=None)), packed(packer, batch)
    expected, inputs = views(torch.from_numpy(whole[0]), whole[1]), views(torch.from_numpy(block), shape)
    assert batch.shared is not None
    if not batch.shared.any():
        assert shape == whole[1]
        assert inputs.places is None
        return
    assert inputs.places is not None
    num_tokens, num_computed = batch.num_tokens, batch.num_tokens - int(batch.shared.sum())
    places = inputs.places[:num_tokens].long()
    assert set(places.tolist()) == set(range(num_computed))
    assert (inputs.places[num_tokens:] == -1).all()
    assert torch.equal(inputs.token_ids[places], expected.token_ids[:num_tokens])
    assert torch.equal(inputs.positions[places], expected.positions[:num_tokens])
    assert not inputs.token_ids[num_computed:].any()
    if expected.token_type_ids is not None:
        assert inputs.token_type_ids is not None
        assert torch.equal(inputs.token_type_ids[places], expected.token_type_ids[:num_tokens])
    num_seqs = batch.num_seqs
    assert inputs.cu_seqlens[: num_seqs + 1].tolist() == batch.cu_seqlens.tolist()
    assert inputs.pooled[:num_seqs].tolist() == places[expected.pooled[:num_seqs].long()].tolist()
    assert inputs.pooled_tiles.table[:num_seqs].tolist() == expected.pooled_tiles.table[:num_seqs].tolist()


@given(sharing())
def test_each_row_attends_where_its_token_stands_to_all_of_the_sequence(batch: Batch) -> None:
    block, shape = packed(PACKER, batch)
    inputs = views(torch.from_numpy(block), shape)
    bounds, seen = batch.cu_seqlens.tolist(), []
    for first, num_queries, position, first_key, num_keys, sequence in inputs.tiles.table.tolist():
        if num_queries:
            assert num_queries <= inputs.tiles.block
            assert [first_key, first_key + num_keys] == bounds[sequence : sequence + 2]
        for number in range(num_queries):
            token = first_key + position + number
            assert first + number == (token if inputs.places is None else int(inputs.places[token]))
            seen.append(first + number)
    assert sorted(seen) == list(range(len(seen)))
    assert batch.shared is not None
    assert len(seen) == batch.num_tokens - int(batch.shared.sum())


def test_sparse_rows_have_no_sequences_of_padding() -> None:
    batch = made([1] * 9, [0, 3, 6, 9])
    shapes_of = dataclasses.replace(SHAPES, outputs=OutputKind.SPARSE)
    assert SHAPES.of(batch).num_seqs == 8
    assert shapes_of.of(dataclasses.replace(batch, outputs=OutputKind.SPARSE)).num_seqs == 3


@pytest.mark.parametrize(("padding_id", "pooled"), [(None, [2, 5, 6]), (9, [1, 3, 6])])
def test_the_last_token_may_be_the_last_that_is_not_padding(padding_id: int | None, pooled: list[int]) -> None:
    """A text can end with that token by spelling it out; of one that has no other it is the first."""
    packer = dataclasses.replace(PACKER, padding_id=padding_id)
    block, shape = packed(packer, made([1, 2, 9, 3, 9, 9, 9], [0, 3, 6, 7]))
    assert views(torch.from_numpy(block), shape).pooled[:3].tolist() == pooled


@pytest.mark.parametrize("hides_tokens", [False, True])
def test_hidden_tokens_are_no_keys(hides_tokens: bool) -> None:
    """Where the model hides them: others attend to the tokens that fill a query up."""
    marks = np.array([0, 0, EXPANSION_TOKEN, EXPANSION_TOKEN, PROMPT_TOKEN, 0], np.uint8)
    batch = dataclasses.replace(made([1, 2, 3, 3, 4, 5], [0, 4, 6]), marks=marks)
    block, shape = packed(dataclasses.replace(PACKER, hides_tokens=hides_tokens), batch)
    tiles = views(torch.from_numpy(block), shape).tiles.table
    assert tiles[:2, 1].tolist() == [4, 2]  # queries
    assert tiles[:2, 4].tolist() == ([2, 2] if hides_tokens else [4, 2])


@pytest.mark.parametrize("is_hidden", [[0, 1, 0], [1, 1, 1]])
def test_hidden_tokens_elsewhere_are_refused(is_hidden: list[int]) -> None:
    batch = dataclasses.replace(made([1, 2, 3], [0, 3]), marks=np.array(is_hidden, np.uint8) * EXPANSION_TOKEN)
    with pytest.raises(ValueError, match="hidden tokens before others, or with no others"):
        packed(dataclasses.replace(PACKER, hides_tokens=True), batch)


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
        outputs=OUTPUTS,
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
    shares = data.draw(st.booleans())
    pairs = zip([0, *seqlens], seqlens, strict=False)
    shared = np.array([data.draw(st.integers(0, min(pair[0], pair[1] - 1))) for pair in pairs], np.int32) * shares
    while sum(seqlens) - shared.sum() > max_num_tokens or sum(seqlens) > 4 * max_num_tokens:
        seqlens.pop()
        shared = shared[:-1]
    made = dataclasses.replace(batch_of(seqlens, has_types=data.draw(st.booleans())), shared=shared)
    shape, largest = some.of(made), some.largest
    num_computed = made.num_tokens - shared.sum()
    assert num_computed <= shape.num_tokens <= largest.num_tokens < max_num_tokens + 16
    assert made.num_tokens <= shape.num_places <= largest.num_places or not shared.any()
    assert shape.num_tokens % 16 == shape.num_places % 16 == 0
    assert made.num_seqs <= shape.num_seqs <= min(largest.num_seqs, shape.num_tokens, max_num_seqs)
    assert len(tile_table(made.cu_seqlens, block=shape.block, shared=shared)) <= shape.num_tiles
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


def test_requests_that_share_a_prefix_add_few_shapes() -> None:
    """A template and a query before each document."""
    some, numbers = shapes(16_384, 1024, 512), np.random.default_rng(0)
    seen = set()
    for _ in range(2000):
        prefix, num_documents = numbers.integers(60, 120), numbers.integers(2, 100)
        documents = numbers.lognormal(5, 0.5, num_documents).clip(1, 390).astype(int)
        documents = documents[: max(2, np.searchsorted(np.cumsum(documents), 16_000))]
        of_prefix = np.append(0, np.full(len(documents) - 1, prefix)).astype(np.int32)
        shape = some.of(dataclasses.replace(batch_of((documents + prefix).tolist()), shared=of_prefix))
        assert shape.num_places >= (documents + prefix).sum()
        seen.add(shape)
    assert len(seen) <= 80


def test_of_a_batch_that_shares_what_is_computed_is_limited_and_more_loosely_what_is_sent() -> None:
    some = shapes(64, 100, 32)
    sharing = np.array([0] + [31] * 7, np.int32)
    shape = some.of(dataclasses.replace(batch_of([32] * 8), shared=sharing))
    assert (shape.num_tokens, shape.num_places) == (64, 128 * 2)
    unlimited = dataclasses.replace(some, max_graph_tokens=0)
    shape = unlimited.of(dataclasses.replace(batch_of([32] * 7 + [20]), shared=np.append(sharing[:7], 1)))
    assert (shape.num_tokens, shape.num_places) == (64, 256)
    for seqlens, shared in (([32] * 9, [0] + [31] * 8), ([32] * 8, [0] + [20] * 7)):
        with pytest.raises(ValueError, match="limits"):
            some.of(dataclasses.replace(batch_of(seqlens), shared=np.array(shared, np.int32)))


def test_batches_without_a_graph_are_padded_to_the_next_16_tokens() -> None:
    some = shapes(16_384, 64, 512, max_graph_tokens=2048)
    largest, larger = some.of(batch_of([512, 512, 512, 500])), some.of(batch_of([512, 512, 512, 512, 52]))
    assert (largest.num_tokens, largest.is_worth_a_graph) == (2048, True)
    assert (larger.num_tokens, larger.is_worth_a_graph) == (2112, False)
    of_tokens = some.of(batch_of([100], outputs=OutputKind.TOKENS))
    assert (of_tokens.num_tokens, of_tokens.is_worth_a_graph) == (112, False)


def test_types_that_the_model_does_not_tell_apart_are_no_part_of_the_shape() -> None:
    some = Shapes(
        max_num_tokens=64, max_num_seqs=8, max_seqlen=32, has_token_types=False, max_graph_tokens=64, outputs=OUTPUTS
    )
    assert some.of(batch_of([3], has_types=True)) == some.of(batch_of([3]))


@pytest.mark.parametrize("seqlens", [[33], [30, 30, 5], [1] * 9])
def test_what_is_over_a_limit_is_refused(seqlens: list[int]) -> None:
    with pytest.raises(ValueError, match="limits"):
        shapes(64, 8, 32).of(batch_of(seqlens))
