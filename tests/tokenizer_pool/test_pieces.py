"""How requests are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer_pool.client import TokenizerSpeed, cut


@given(st.lists(st.integers(0, 300), min_size=1, max_size=80), st.integers(1, 2000), st.integers(0, 50))
def test_spans_follow_each_other_and_none_is_larger_than_it_must_be(
    lengths: list[int], max_chars: int, prompt_chars: int
) -> None:
    texts = ["x" * length for length in lengths]
    prompt = "p" * prompt_chars
    work = [cut([text], prompt=prompt, max_chars=max_chars)[0][2] for text in texts]
    assert all(chars > length + prompt_chars for chars, length in zip(work, lengths, strict=True))
    spans = cut(texts, prompt=prompt, max_chars=max_chars)
    assert [start for start, _, _ in spans] == [0, *(stop for _, stop, _ in spans[:-1])]
    assert spans[-1][1] == len(texts)
    for start, stop, num_chars in spans:
        assert num_chars == sum(work[start:stop])
        assert num_chars <= max_chars or stop == start + 1
    for _, stop, num_chars in spans[:-1]:
        assert num_chars + work[stop] > max_chars


def test_a_single_text_is_one_span() -> None:
    assert cut(["x" * 100], prompt="pp", max_chars=1) == [(0, 1, 100 + 2 + 20)]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=40), st.integers(1, 2000))
def test_a_pair_counts_with_both_its_texts(lengths: list[tuple[int, int]], max_chars: int) -> None:
    firsts = ["x" * first for first, _ in lengths]
    pairs = ["y" * second for _, second in lengths]
    as_one = ["z" * (first + second) for first, second in lengths]
    expected = cut(as_one, prompt="pp", max_chars=max_chars)
    assert cut(firsts, prompt="pp", max_chars=max_chars, pair_texts=pairs) == expected


def test_the_pace_is_learnt() -> None:
    pace = TokenizerSpeed()
    for _ in range(200):
        pace.learn(1000, 0.0004)
    assert pace.seconds_per_char == pytest.approx(4e-7, rel=1e-3)
    assert pace.seconds(2000) == pytest.approx(0.0008, rel=1e-3)
    assert pace.chars(0.0004) == pytest.approx(1000, rel=1e-2)


def test_pieces_that_cost_next_to_nothing_make_the_next_ones_no_longer_than_the_fastest_tokenizer_would() -> None:
    pace = TokenizerSpeed()
    for _ in range(500):
        pace.learn(10**9, 0.0001)
    assert pace.seconds_per_char == pytest.approx(1e-7, rel=1e-3)


def test_a_piece_that_was_held_up_moves_the_pace_little() -> None:
    pace = TokenizerSpeed()
    pace.learn(100, 10.0)
    assert pace.seconds_per_char <= 1.3e-6 * 1.001
