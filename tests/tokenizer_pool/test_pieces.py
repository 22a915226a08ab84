"""How requests are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer_pool.messages import Refusal, TextRefused, Truncation
from tokenizer_pool.pieces import MAX_CHARS_PER_TOKEN, Pace, Span, cap, cut

MAX_SEQLEN = 4
MAX_CHARS = MAX_SEQLEN * MAX_CHARS_PER_TOKEN


@given(st.lists(st.integers(0, 300), min_size=1, max_size=80), st.integers(1, 2000), st.integers(0, 50))
def test_spans_follow_each_other_and_none_is_larger_than_it_must_be(
    lengths: list[int], max_chars: int, prompt_chars: int
) -> None:
    texts = ["x" * length for length in lengths]
    prompt = "p" * prompt_chars
    work = [cut([text], prompt=prompt, max_chars=max_chars)[0].num_chars for text in texts]
    assert all(chars > length + prompt_chars for chars, length in zip(work, lengths, strict=True))
    spans = cut(texts, prompt=prompt, max_chars=max_chars)
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == len(texts)
    for span in spans:
        assert span.num_chars == sum(work[span.start : span.stop])
        assert span.num_chars <= max_chars or span.stop == span.start + 1
    for span in spans[:-1]:
        assert span.num_chars + work[span.stop] > max_chars


def test_a_single_text_is_one_span() -> None:
    assert cut(["x" * 100], prompt="pp", max_chars=1) == [Span(0, 1, 100 + 2 + 20)]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=40), st.integers(1, 2000))
def test_a_pair_counts_with_both_its_texts(lengths: list[tuple[int, int]], max_chars: int) -> None:
    firsts = ["x" * first for first, _ in lengths]
    pairs = ["y" * second for _, second in lengths]
    as_one = ["z" * (first + second) for first, second in lengths]
    expected = cut(as_one, prompt="pp", max_chars=max_chars)
    assert cut(firsts, prompt="pp", max_chars=max_chars, pair_texts=pairs) == expected


def test_a_query_far_too_long_is_cut_once_for_all_its_documents() -> None:
    query = "q" * (MAX_CHARS + 1)
    capped, _ = cap([query] * 3, max_seqlen=MAX_SEQLEN, truncation=Truncation.RIGHT)
    assert len(capped[0]) == MAX_CHARS
    assert capped[0] is capped[1] is capped[2]


def test_texts_that_could_matter_are_not_capped() -> None:
    texts = ["x" * MAX_CHARS, "", "y"]
    for truncation in Truncation:
        assert cap(texts, max_seqlen=MAX_SEQLEN, truncation=truncation) == (texts, [])


def test_a_text_far_too_long_is_cut_where_its_tokens_would_be() -> None:
    texts = ["short", "a" + "b" * MAX_CHARS, "b" * MAX_CHARS + "a"]
    right, indices = cap(texts, max_seqlen=MAX_SEQLEN, truncation=Truncation.RIGHT)
    assert indices == [1, 2]
    assert list(right) == ["short", "a" + "b" * (MAX_CHARS - 1), "b" * MAX_CHARS]
    left, _ = cap(texts, max_seqlen=MAX_SEQLEN, truncation=Truncation.LEFT)
    assert list(left) == ["short", "b" * MAX_CHARS, "b" * (MAX_CHARS - 1) + "a"]
    assert len(texts[1]) == MAX_CHARS + 1  # the caller's list is not changed


def test_without_truncation_a_text_far_too_long_is_refused() -> None:
    with pytest.raises(TextRefused) as caught:
        cap(["short", "x" * (MAX_CHARS + 1)], max_seqlen=MAX_SEQLEN, truncation=Truncation.NONE)
    assert (caught.value.reason, caught.value.index, caught.value.max_tokens) == (Refusal.TOO_LONG, 1, MAX_SEQLEN)


def test_the_pace_is_learnt() -> None:
    pace = Pace()
    for _ in range(200):
        pace.learn(1000, 0.0004)
    assert pace.seconds_per_char == pytest.approx(4e-7, rel=1e-3)
    assert pace.seconds(2000) == pytest.approx(0.0008, rel=1e-3)
    assert pace.chars(0.0004) == pytest.approx(1000, rel=1e-2)


def test_pieces_that_cost_next_to_nothing_make_the_next_ones_no_longer_than_the_fastest_tokenizer_would() -> None:
    pace = Pace()
    for _ in range(500):
        pace.learn(10**9, 0.0001)
    assert pace.seconds_per_char == pytest.approx(1e-7, rel=1e-3)


def test_a_piece_that_was_held_up_moves_the_pace_little() -> None:
    pace = Pace()
    pace.learn(100, 10.0)
    assert pace.seconds_per_char <= 1.3e-6 * 1.001
