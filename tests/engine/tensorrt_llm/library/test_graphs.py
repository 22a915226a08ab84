"""Which shapes graphs are recorded for."""

import pytest

from engine.tensorrt_llm.library.graphs import Buckets, buckets


def test_small_shapes_alone() -> None:
    assert buckets(max_num_seqs=32, max_num_tokens=16_384, max_seqlen=8192) == Buckets(
        (1, 2, 4, 8), (32, 64, 128, 256, 512, 1024), (32, 64, 128, 256, 512)
    )


def test_none_is_larger_than_a_limit() -> None:
    assert buckets(max_num_seqs=5, max_num_tokens=300, max_seqlen=128) == Buckets(
        (1, 2, 4), (32, 64, 128, 256), (32, 64, 128)
    )


@pytest.mark.parametrize("limit", [1, 7, 31, 33, 1000])
def test_there_is_always_one(limit: int) -> None:
    """An empty list, or none, would leave the library without graphs, of which it only warns."""
    found = buckets(max_num_seqs=limit, max_num_tokens=limit, max_seqlen=limit)

    for sizes in (found.batch_sizes, found.num_tokens, found.seq_lens):
        assert sizes
        assert max(sizes) <= limit
        assert sorted(set(sizes)) == list(sizes)
