"""Tables of tiles, against loops that say the same in plain words."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.fused.model.ops import TILE_FIELDS
from engine.fused.packing import BLOCKS, choose_block, max_num_tiles, pooled_tile_table, tile_table

LENGTHS = st.lists(st.integers(0, 300), min_size=1, max_size=20)


def bounds(lengths: list[int]) -> NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def brute_force(lengths: list[int], block: int) -> list[tuple[int, ...]]:
    rows: list[tuple[int, ...]] = []
    start = 0
    for number, length in enumerate(lengths):
        for position in range(0, length, block):
            rows.append((start + position, min(block, length - position), position, start, length, number))
        start += length
    return rows


@given(LENGTHS, st.sampled_from(BLOCKS), st.booleans())
def test_each_token_is_in_the_tile_that_it_should_be_in(lengths: list[int], block: int, hides_tokens: bool) -> None:
    num_keys = np.maximum(np.array(lengths) - 3, 1) if hides_tokens else None
    table = tile_table(bounds(lengths), block=block, num_keys=num_keys)
    assert table.dtype == np.int32
    expected = brute_force(lengths, block)
    if num_keys is not None:
        expected = [(*row[:4], int(num_keys[row[5]]), row[5]) for row in expected]
    assert sorted(map(tuple, table.tolist())) == expected
    assert len(table) <= max_num_tiles(sum(lengths), len(lengths), block=block)


def test_long_sequences_come_first_and_the_last_tile_before_the_others() -> None:
    table = tile_table(bounds([20, 40, 16]), block=16)
    assert table[:, 4].tolist() == [40, 40, 40, 20, 20, 16]
    assert table[:, 2].tolist() == [32, 16, 0, 16, 0, 0]
    assert table[:, 1].tolist() == [8, 16, 16, 4, 16, 16]


def test_sequences_without_tokens_have_no_tiles() -> None:
    assert tile_table(bounds([0, 0]), block=64).shape == (0, TILE_FIELDS)


@pytest.mark.parametrize("num_tokens", [0, 1, 16, 17, 50])
@pytest.mark.parametrize("num_seqs", [1, 2, 3])
def test_the_most_tiles_are_just_enough(num_tokens: int, num_seqs: int) -> None:
    splits = itertools.product(range(num_tokens + 1), repeat=num_seqs)
    needed = max(len(brute_force(list(split), 16)) for split in splits if sum(split) == num_tokens)
    assert max_num_tiles(num_tokens, num_seqs, block=16) == needed


@given(LENGTHS, st.booleans())
def test_pooled_tiles_have_one_query_a_sequence(lengths: list[int], is_last: bool) -> None:
    starts = bounds(lengths)
    pooled = starts[1:] - 1 if is_last else starts[:-1]
    table = pooled_tile_table(starts, pooled)
    assert table.dtype == np.int32
    for number, (row, length) in enumerate(zip(table.tolist(), lengths, strict=True)):
        start = int(starts[number])
        assert row == ([number, 1, int(pooled[number]) - start, start, length, number] if length else [0] * TILE_FIELDS)


@pytest.mark.parametrize(
    ("lengths", "block"),
    [
        ([1, 5, 16], 16),
        ([17, 30], 32),
        ([60] * 9, 64),
        ([512] * 4, 128),
        ([8192], 128),
        ([130] * 9, 64),  # 128 would waste nearly half of its rows
        ([8192, *[8] * 100], 128),  # most of the work is in the long one
        ([0, 0], 16),
    ],
)
def test_the_block_suits_where_the_work_is(lengths: list[int], block: int) -> None:
    assert choose_block(bounds(lengths)) == block
