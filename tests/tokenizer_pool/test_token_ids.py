"""Ids that a request gives, and pieces joined."""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.tokenizer_pool.samples import lists, refusal
from tokenizer_pool.messages import TextRefusal, TextRefused, Truncation
from tokenizer_pool.tasks import TokenizedTexts, offsets_of
from tokenizer_pool.token_ids import SLICE_IDS, check_token_ids, flatten, join
from wire.parts import Part

VOCAB_SIZE = 100
MAX_SEQLEN = 4


def check(token_ids: list[list[int]], truncation: Truncation = Truncation.RIGHT) -> TokenizedTexts:
    checking = check_token_ids(token_ids, vocab_size=VOCAB_SIZE, max_seqlen=MAX_SEQLEN, truncation=truncation)
    return asyncio.run(checking)


@pytest.mark.parametrize("truncation", Truncation)
def test_ids_are_used_as_they_stand(truncation: Truncation) -> None:
    given = [[5, 0, 99], [7], [1, 2, 3, 4]]
    texts = check(given, truncation)
    assert lists(texts) == given
    assert texts.truncated.tolist() == [0, 0, 0]


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize(
    ("truncation", "expected"), [(Truncation.RIGHT, [[1, 2, 3, 4], [9]]), (Truncation.LEFT, [[3, 4, 5, 6], [9]])]
)
def test_long_lists_are_cut_where_text_would_be(truncation: Truncation, expected: list[list[int]]) -> None:
    texts = check([[1, 2, 3, 4, 5, 6], [9]], truncation)
    assert lists(texts) == expected
    assert texts.truncated.tolist() == [1, 0]


@pytest.mark.holds("Truncation")
def test_without_truncation_a_long_list_is_refused() -> None:
    with pytest.raises(TextRefused) as caught:
        check([[1], [1] * 4, [1] * 5, [1] * 6], Truncation.NONE)
    refused = caught.value
    assert (refused.reason, refused.index, refused.max_tokens) == (TextRefusal.TOO_LONG, 2, 4)


def test_an_empty_list_is_refused() -> None:
    assert refusal(lambda: check([[1], [], [2], []])) == (TextRefusal.EMPTY, 1)


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 2**31, 2**32 + 1, 2**63, 2**80, -(2**80)])
def test_an_id_that_the_model_does_not_have_is_refused(bad: int) -> None:
    assert refusal(lambda: check([[1, 2], [3], [4, bad, 5], [bad]])) == (TextRefusal.OUT_OF_VOCABULARY, 2)


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 2**63, 10**20, -(10**20)])
@pytest.mark.parametrize("place", [1, SLICE_IDS, SLICE_IDS + 5])
def test_empty_lists_before_a_bad_id_are_counted(bad: int, place: int) -> None:
    """/decode takes empty lists."""
    given: list[list[int]] = [[], [1] * place, [], [], [2, bad], [], [bad]]
    offsets = offsets_of(np.fromiter(map(len, given), np.int64))
    found = refusal(lambda: asyncio.run(flatten(given, offsets, vocab_size=VOCAB_SIZE)))
    assert found == (TextRefusal.OUT_OF_VOCABULARY, 4)


def test_ids_that_would_be_cut_off_are_checked_too() -> None:
    assert refusal(lambda: check([[1] * MAX_SEQLEN + [VOCAB_SIZE]])) == (TextRefusal.OUT_OF_VOCABULARY, 0)


@pytest.mark.parametrize("place", [0, SLICE_IDS - 1, SLICE_IDS, 2 * SLICE_IDS, 3 * SLICE_IDS - 2])
def test_a_bad_id_is_found_in_any_slice(place: int) -> None:
    flat = [1] * (3 * SLICE_IDS - 1)
    flat[place] = VOCAB_SIZE
    given = [flat[:1], flat[1 : SLICE_IDS + 1], flat[SLICE_IDS + 1 :]]
    index = 0 if place < 1 else 1 if place <= SLICE_IDS else 2
    assert refusal(lambda: check(given)) == (TextRefusal.OUT_OF_VOCABULARY, index)


@pytest.mark.parametrize("truncation", [Truncation.RIGHT, Truncation.LEFT])
def test_many_ids_stay_in_order(truncation: Truncation) -> None:
    ids = [number % VOCAB_SIZE for number in range(2 * SLICE_IDS + 5)]
    short = [ids[start : start + MAX_SEQLEN] for start in range(0, len(ids), MAX_SEQLEN)]
    kept = ids[:MAX_SEQLEN] if truncation is Truncation.RIGHT else ids[-MAX_SEQLEN:]
    assert lists(check([*short, ids], truncation)) == [*short, kept]


def test_others_have_their_turn_while_many_ids_are_checked() -> None:
    async def num_turns(num_ids: int) -> int:
        turns = 0
        checking = asyncio.ensure_future(
            check_token_ids([[1] * num_ids], vocab_size=2, max_seqlen=num_ids, truncation=Truncation.RIGHT)
        )
        while not checking.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(num_turns(9 * SLICE_IDS)) - asyncio.run(num_turns(SLICE_IDS)) == 8


def piece(*texts: list[int], truncated: int = 0) -> TokenizedTexts:
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    flags = np.full(len(texts), truncated, np.uint8)
    return TokenizedTexts(np.array([*itertools.chain(*texts)], np.int32), offsets, flags)


def test_pieces_are_joined_in_order() -> None:
    texts = join([piece([1], [2, 3]), piece([4, 5, 6], truncated=1), piece([7], [8])])
    assert lists(texts) == [[1], [2, 3], [4, 5, 6], [7], [8]]
    assert texts.truncated.tolist() == [0, 0, 1, 0, 0]


def test_types_are_joined_where_some_piece_has_them() -> None:
    plain = piece([1], [2, 3])
    typed = replace(piece([4, 5]), parts={Part.TOKEN_TYPE_IDS: np.array([0, 1], np.int32)})
    types = join([plain, typed, plain]).parts[Part.TOKEN_TYPE_IDS]
    assert types.dtype == np.int32
    assert types.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert join([plain, plain]).parts == {}
