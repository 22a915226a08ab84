"""The special tokens around texts: ids that the tests of others have, for the flags and code that folders hold."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors
from transformers import LlamaTokenizer

from tests.tokenizer_pool.builders import write_json
from tokenizer_pool.loading import load
from tokenizer_pool.messages import TokenizerSpec, Truncation
from tokenizer_pool.special_tokens import ends, in_words
from tokenizer_pool.tokenizer import Tokenizer
from wire.tokenizer_files import TokenizerError

LLAMA = {"<unk>": 0, "<s>": 1, "</s>": 2, "A": 319, "sample": 4559, "test": 1243}
GEMMA = {"<unk>": 3, "<bos>": 2, "<eos>": 1, "A": 235280, "sample": 6453, "test": 2121}
QWEN = {"[UNK]": 0, "hello": 1, "world": 2, "[EOS]": 3}
QWEN_CODE = ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"]
OF_QWEN = {"tokenizer_class": "Qwen2Tokenizer", "auto_map": {"AutoTokenizer": QWEN_CODE}, "eos_token": "[EOS]"}
E5_MISTRAL = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True}


def folder_of(folder: Path, vocab: dict[str, int], config: dict[str, Any], template: str = "") -> Path:
    """A tokenizer of whole words. `template`: what tokenizer.json says, such as "<s> $A"; "" = nothing."""
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=next(iter(vocab))))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    specials = [token for token in vocab if token.startswith(("<", "["))]
    backend.add_special_tokens(specials)
    if template:
        named = [(token, vocab[token]) for token in specials if token in template]
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", config)
    return folder


# transformers 4.57, tests/models/llama/test_tokenization_llama.py and tests/models/code_llama: test_fast_special_tokens
@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"])
@pytest.mark.parametrize("template", ["", "<s> $A", "<s> $A </s>"])
@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ({"add_eos_token": False}, [1, 319, 4559, 1243]),
        ({"add_eos_token": True}, [1, 319, 4559, 1243, 2]),
        ({"add_eos_token": True, "add_bos_token": False}, [319, 4559, 1243, 2]),
    ],
)
def test_llama(tmp_path: Path, name: str, template: str, flags: dict[str, bool], ids: list[int]) -> None:
    folder = folder_of(tmp_path, LLAMA, {"tokenizer_class": name, **flags}, template)
    assert load(folder).encode("A sample test").ids == ids


# transformers 4.57, tests/models/gemma/test_tokenization_gemma.py: test_fast_special_tokens
@pytest.mark.parametrize(
    ("flags", "ids"), [({}, [2, 235280, 6453, 2121]), ({"add_eos_token": True}, [2, 235280, 6453, 2121, 1])]
)
def test_gemma(tmp_path: Path, flags: dict[str, bool], ids: list[int]) -> None:
    folder = folder_of(tmp_path, GEMMA, {"tokenizer_class": "GemmaTokenizer", **flags})
    assert load(folder).encode("A sample test").ids == ids


# vllm-project/vllm, tests/tokenizers_/test_basic.py: test_gte_legacy_eos, test_gte_legacy_auto_map
@pytest.mark.parametrize("adds_eos", [True, False])
@pytest.mark.parametrize("others", [{}, {"add_bos_token": True, "bos_token": "[UNK]"}, {"auto_map": QWEN_CODE}])
def test_gte_qwen2(tmp_path: Path, adds_eos: bool, others: dict[str, Any]) -> None:
    folder = folder_of(tmp_path, QWEN, {**OF_QWEN, "add_eos_token": adds_eos, **others})
    last = [3] if adds_eos else []
    ours = load(folder)
    assert ours.encode("hello world").ids == [1, 2, *last]
    assert ours.encode("hello world", add_special_tokens=False).ids == [1, 2]
    pairs = Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=9)).encode(["hello"], pair_texts=["world"])
    assert pairs.token_ids.tolist() == [1, *last, 2, *last]


def test_code_of_a_copy_is_known_by_its_name(tmp_path: Path) -> None:
    """What transformers writes into the folder of a fine-tuned model: whose code it is."""
    code = [f"Alibaba-NLP/gte-Qwen2-1.5B-instruct--{name}" for name in QWEN_CODE]
    folder = folder_of(tmp_path, QWEN, {**OF_QWEN, "add_eos_token": True, "auto_map": {"AutoTokenizer": code}})
    assert load(folder).encode("hello").ids == [1, 3]


@pytest.mark.parametrize("other", ["evil/x--tokenization_qwen.Qwen2Tokenizer", "tokenization_own.Qwen2Tokenizer"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_code_of_others_is_refused_in_either_file(tmp_path: Path, file: str, other: str) -> None:
    folder = folder_of(tmp_path, QWEN, {"eos_token": "[EOS]"})
    write_json(folder / file, {"auto_map": {"AutoTokenizer": [other, None]}})
    with pytest.raises(TokenizerError, match=f"auto_map in {file} names code, {other}, which is not run here"):
        ends(folder)


def test_code_that_config_json_alone_names_is_known(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, QWEN, {"eos_token": "[EOS]", "add_eos_token": True})
    write_json(folder / "config.json", {"auto_map": {"AutoTokenizer": QWEN_CODE}})
    assert load(folder).encode("hello").ids == [1, 3]


def test_the_class_of_gpt_neox_takes_away_what_tokenizer_json_adds(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA, {}, "<s> $A </s>")
    write_json(folder / "config.json", {"model_type": "gpt_neox", "transformers_version": "4.40.0"})
    assert load(folder).encode("A").ids == [319]


# mteb pull request 5237: "<s> + A + </s>" up to transformers 4.57.6, "<s> + A" by tokenizer.json alone
def test_a_long_text_and_a_long_pair_keep_the_last_token(tmp_path: Path) -> None:
    ours = Tokenizer(TokenizerSpec(folder=str(folder_of(tmp_path, LLAMA, E5_MISTRAL, "<s> $A")), max_seqlen=6))
    for truncation in (Truncation.RIGHT, Truncation.LEFT):
        found = ours.encode(["A", "test " * 9], truncation=truncation)
        assert found.token_ids.tolist() == [1, 319, 2, 1, 1243, 1243, 1243, 1243, 2]
    pair = ours.encode(["A A A"], pair_texts=["test test test"])
    assert pair.token_ids.tolist() == [1, 319, 2, 1, 1243, 2]


@pytest.mark.parametrize(
    ("config", "model", "ids"),
    [
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": True}, {}, [319]),
        ({"tokenizer_class": "Qwen2Tokenizer", "add_eos_token": True}, {}, [319]),
        ({"tokenizer_class": "LlamaTokenizer"}, {"transformers_version": "5.2.0"}, [319]),
        ({"tokenizer_class": "LlamaTokenizer"}, {"transformers_version": "4.40.0"}, [1, 319]),
        ({"tokenizer_class": "GPTNeoXTokenizer", "bos_token": "<s>"}, {}, [319]),
        ({"add_eos_token": True}, {"model_type": "mistral"}, [1, 319, 2]),
        ({"tokenizer_class": "LlamaTokenizer", "add_eos_token": False}, {"model_type": "nvembed"}, [1, 319, 2]),
        ({}, {"model_type": "mistral"}, [319]),
        ({}, {"model_type": "mistral", "transformers_version": "4.40.0"}, [1, 319]),
        ({}, {"model_type": "mistral", "transformers_version": "5.0.0"}, [319]),
        ({"add_bos_token": None}, {"model_type": "mistral", "transformers_version": "4.40.0"}, [319]),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": None}, {}, [319]),
        ({"bos_token": "<s>", "eos_token": "</s>", "add_eos_token": True}, {"model_type": "gemma3_text"}, [1, 319, 2]),
        ({"eos_token": "</s>", "add_eos_token": True}, {"model_type": "olmo"}, [319, 2]),
        ({"eos_token": "</s>", "add_eos_token": True}, {"model_type": "stablelm"}, [319, 2]),
    ],
    ids=str,
)
def test_which_classes_follow_the_flags(
    tmp_path: Path, config: dict[str, Any], model: dict[str, str], ids: list[int]
) -> None:
    folder = folder_of(tmp_path, LLAMA, config)
    write_json(folder / "config.json", model)
    assert load(folder).encode("A").ids == ids


def test_a_folder_that_transformers_5_saved_is_taken_as_it_is(tmp_path: Path) -> None:
    """It keeps the class and drops the flags; what it tokenized with is in tokenizer.json."""
    LlamaTokenizer.from_pretrained(folder_of(tmp_path / "old", LLAMA, E5_MISTRAL, "<s> $A")).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "LlamaTokenizer"
    assert ends(tmp_path) is None


def test_it_is_said_in_words(tmp_path: Path) -> None:
    assert in_words(folder_of(tmp_path, LLAMA, E5_MISTRAL)) == (
        "<s> before and </s> after each text "
        "(tokenizer_config.json: add_bos_token true and add_eos_token true, with LlamaTokenizer)"
    )
    assert "</s> after each text" in in_words(folder_of(tmp_path, LLAMA, {**E5_MISTRAL, "add_bos_token": False}))
    assert in_words(folder_of(tmp_path, QWEN, OF_QWEN)).startswith("none before or after each text (")
    assert in_words(folder_of(tmp_path, LLAMA, {})) == "as tokenizer.json says"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**E5_MISTRAL, "add_eos_token": "yes"}, "add_eos_token in tokenizer_config.json is neither true nor false"),
        ({**E5_MISTRAL, "eos_token": None}, "add_eos_token of tokenizer_config.json needs a eos_token"),
        ({"tokenizer_class": "GemmaTokenizer"}, "tokenizer.json has no token '<bos>' to be put around texts"),
    ],
    ids=str,
)
def test_what_can_not_be_honoured_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        load(folder_of(tmp_path, LLAMA, config))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
