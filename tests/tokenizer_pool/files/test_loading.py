"""Model folders become the tokenizers that transformers 4 makes of them, or 5 where it saved them."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from sentence_transformers.base.modules import Transformer
from tokenizers import AddedToken, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from tests.tokenizer_pool.builders import (
    DEBERTA_V2_TOKENS,
    bert_folder,
    folder_of,
    qwen,
    roberta,
    save_tiny_bert,
    unigram,
    word_piece,
    write_json,
)
from tests.tokenizer_pool.samples import SAMPLES
from tokenizer_pool.loading import load
from wire import files, tokenizer_files
from wire.tokenizer_files import TokenizerError

MAX_SEQLEN = 32


def assert_same_ids(folder: Path, *texts: str) -> None:
    reference, ours = AutoTokenizer.from_pretrained(folder), load(folder)
    for text in texts:
        assert ours.encode(text).ids == reference(text)["input_ids"], text
    assert ours.get_vocab_size() == len(reference)


def assert_equal_to_transformers(folder: Path) -> None:
    reference = AutoTokenizer.from_pretrained(folder)
    ours = load(folder)
    ours.enable_truncation(MAX_SEQLEN)
    for name, text in SAMPLES.items():
        expected = reference(text, truncation=True, max_length=MAX_SEQLEN)["input_ids"]
        assert ours.encode_batch_fast([text])[0].ids == expected, name


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        {"tokenizer_class": "BertTokenizerFast", "strip_accents": False, "tokenize_chinese_chars": False},
        {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False, "strip_accents": True},
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},  # which takes the file as it stands
        {"tokenizer_class": "LayoutLMTokenizer", "do_lower_case": False},
        {"do_lower_case": False},  # the class follows from config.json
        {"tokenizer_class": "BertTokenizer", "split_special_tokens": True},
    ],
    ids=lambda config: " ".join(map(str, config.values())),
)
def test_bert(tmp_path: Path, config: dict[str, Any]) -> None:
    assert_equal_to_transformers(bert_folder(tmp_path, **config))


def test_a_byte_order_mark_before_any_file(tmp_path: Path) -> None:
    expected = load(bert_folder(tmp_path, tokenizer_class="BertTokenizer")).encode("a text").ids
    for file in tmp_path.glob("*.json"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())

    assert load(tmp_path).encode("a text").ids == expected


def test_bert_saved_without_its_casing(tmp_path: Path) -> None:
    """transformers takes the configuration's word, or else its own default, over tokenizer.json's."""
    folder = bert_folder(tmp_path, lowercase=False, tokenizer_class="BertTokenizer")
    assert_equal_to_transformers(folder)
    assert load(folder).encode("SHOUTING").ids == load(folder).encode("shouting").ids


@pytest.mark.parametrize("add_prefix_space", [False, True])
@pytest.mark.parametrize("tokenizer_class", ["RobertaTokenizer", "GPT2Tokenizer"])
def test_a_space_before_the_first_word(tmp_path: Path, tokenizer_class: str, add_prefix_space: bool) -> None:
    flags: dict[str, Any] = {"model_type": "roberta", "add_prefix_space": add_prefix_space}
    assert_equal_to_transformers(folder_of(tmp_path, roberta(), tokenizer_class, **flags))


# made from these files by XLMRobertaTokenizerFast, CamembertTokenizerFast and DebertaV2TokenizerFast of 4.57.1
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("XLMRobertaTokenizer", {}),
        ("CamembertTokenizer", {"add_prefix_space": True}),
        ("DebertaV2Tokenizer", {"do_lower_case": True, "split_by_punct": True}),
    ],
    ids=str,
)
def test_unigram_is_taken_as_it_stands(tmp_path: Path, name: str, flags: dict[str, Any]) -> None:
    folder = folder_of(tmp_path, unigram(), name, **flags)
    assert load(folder).encode("\ufb01n  \uff12 ").ids == [0, 363, 186, 343, 3, 343, 2]
    assert load(folder).encode("Seven\nferry!").ids == [0, 354, 169, 166, 3, 174, 233, 265, 8, 2]


def test_steps_of_tokenizer_json_stay_as_they_are(tmp_path: Path) -> None:
    """As XLMRobertaTokenizerFast and BertTokenizerFast of transformers 4.57.1 leave them."""
    backend = unigram()
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    folder = folder_of(tmp_path, backend, "XLMRobertaTokenizer")
    assert load(folder).encode("Seven\nferry!").ids == [0, 354, 169, 166, 363, 168, 235, 8, 2]
    backend = word_piece(lowercase=True)
    backend.normalizer = normalizers.Lowercase()
    folder = folder_of(tmp_path, backend, "BertTokenizer", do_lower_case=False)
    assert load(folder).encode("SHOUTING").ids == load(folder).encode("shouting").ids


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("XLMRobertaTokenizer", {}),
        ("CamembertTokenizer", {"add_prefix_space": True}),
        ("DebertaV2Tokenizer", {"do_lower_case": True, **DEBERTA_V2_TOKENS}),
    ],
    ids=str,
)
def test_a_folder_that_transformers_5_saved(tmp_path: Path, name: str, flags: dict[str, Any]) -> None:
    """Its class builds the tokenizer anew, and saves what it has built."""
    AutoTokenizer.from_pretrained(folder_of(tmp_path, unigram(), name, **flags)).save_pretrained(tmp_path)
    assert_equal_to_transformers(tmp_path)


def test_unigram_of_no_class_in_particular(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, unigram(), "PreTrainedTokenizerFast", model_type="llama")
    assert_equal_to_transformers(folder)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False, "add_eos_token": False}, {"add_eos_token": True}])
def test_the_last_token_of_a_decoder(tmp_path: Path, flags: dict[str, bool]) -> None:
    given: dict[str, Any] = {"model_type": "qwen3", "eos_token": "<|endoftext|>", **flags}
    folder_of(tmp_path, qwen(), "PreTrainedTokenizerFast", **given)
    assert_equal_to_transformers(tmp_path)
    assert load(tmp_path).encode("x").ids[-1] == 5


def test_tokens_that_only_the_configuration_names_are_added(tmp_path: Path) -> None:
    added = {"content": "harbour", "single_word": True, "lstrip": False, "rstrip": False, "normalized": True}
    folder = bert_folder(
        tmp_path,
        tokenizer_class="PreTrainedTokenizerFast",
        added_tokens_decoder={"900": added | {"special": False}},
        eos_token="[END]",
        pad_token={"__type": "AddedToken", "content": "<filler>", "lstrip": True, "rstrip": False, "special": True},
        additional_special_tokens=["[SEVEN]"],
    )
    assert_same_ids(folder, "the harbour", "harbours", "so [END]", "a <filler> b", "[SEVEN] o'clock", "[end]")


def test_tokens_of_an_old_special_tokens_map_are_added(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    write_json(folder / "special_tokens_map.json", {"eos_token": "[END]", "sep_token": "[SEP]"})
    assert_same_ids(folder, "so [END]")


def test_tokens_of_an_old_list_are_added(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, tokenizer_class="BertTokenizer", bos_token="[END]")
    write_json(folder / "added_tokens.json", {"harbour view": 902, "[END]": 901, "[SEP]": 3})
    assert_same_ids(folder, "the Harbour View", "so [END][SEP]", "[end]")


def test_flags_of_a_listed_token_hold_over_those_of_tokenizer_json(tmp_path: Path) -> None:
    token = {"content": "[SEP]", "lstrip": True, "rstrip": True, "normalized": False, "special": True}
    folder = bert_folder(
        tmp_path,
        lowercase=False,
        tokenizer_class="PreTrainedTokenizerFast",
        added_tokens_decoder={"3": token | {"single_word": True}},
        query_token="[QUERY]",
    )
    assert_same_ids(folder, "so [SEP]", "so[SEP]so", "[QUERY] so")


def test_without_a_post_processor_nothing_is_put_around_texts(tmp_path: Path) -> None:
    """As transformers 4 and text-embeddings-inference do; transformers 5 would put what the class says."""
    folder = bert_folder(tmp_path, tokenizer_class="BertTokenizer")
    usual = load(folder).encode("so").ids
    content = json.loads((folder / "tokenizer.json").read_text())
    write_json(folder / "tokenizer.json", content | {"post_processor": None})
    assert load(folder).encode("so").ids == usual[1:-1]


def test_padding_and_truncation_of_the_file_are_switched_off(tmp_path: Path) -> None:
    backend = word_piece(lowercase=True)
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = load(tmp_path)
    assert len(ours.encode("x").ids) < 64
    assert len(ours.encode("seven " * 20).ids) > 20


@pytest.mark.parametrize("first", [None, normalizers.NFC(), normalizers.Sequence([normalizers.Strip()])])
def test_lower_case_first_as_sentence_transformers_puts_it(
    tmp_path: Path, first: normalizers.Normalizer | None
) -> None:
    backend = word_piece(lowercase=True)
    backend.normalizer = first
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    write_json(tmp_path / "tokenizer_config.json", config)
    save_tiny_bert(tmp_path, backend.get_vocab_size())
    reference = Transformer(str(tmp_path), do_lower_case=True, max_seq_length=MAX_SEQLEN)
    ours = load(tmp_path, do_lower_case=True)
    ours.enable_truncation(MAX_SEQLEN)
    for name, text in SAMPLES.items():
        assert ours.encode(text).ids == reference.preprocess([text])["input_ids"][0].tolist(), name
    assert ours.encode("SHOUTING").ids == ours.encode("shouting").ids


def test_a_folder_without_tokenizer_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{tmp_path} has no tokenizer.json; save the model with a fast tokenizer"


@pytest.mark.parametrize("content", ["", "{}", "not JSON", '{"version": "1.0", "model": {"type": "\\n\\nStrange"}}'])
def test_a_broken_tokenizer_json_is_an_error_of_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json can't be read by tokenizers") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["[]", "{"])
def test_a_broken_configuration_is_an_error(tmp_path: Path, content: str) -> None:
    folder = bert_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is not"):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_configuration_that_only_attackers_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_json(bert_folder(tmp_path) / name, {})
    (tmp_path / name).write_bytes(b"[" * 100_000)
    with pytest.raises(TokenizerError, match=rf"{name} is nested too deeply$"):
        load(tmp_path)
    (tmp_path / name).write_bytes(b" " * 100_000 + b"{}")
    load(tmp_path)
    monkeypatch.setattr(files, "MAX_WHOLE_BYTES", 100_000)
    with pytest.raises(TokenizerError, match=rf"{name} is too large: at most 0 MiB are read$"):
        load(tmp_path)


def test_a_tokenizer_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE_BYTES", 10)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json can't be read by .*: at most 0 MiB are read$"):
        load(bert_folder(tmp_path))


def test_a_configuration_that_this_process_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "tokenizer_config.json", {})

    def refused(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tokenizer_files, "read_whole", refused)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json can't be read: Permission denied$"):
        tokenizer_files.read_config(tmp_path / "tokenizer_config.json")


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"one": {"content": "x"}}},
        {"added_tokens_decoder": {"900": {}}},
        {"additional_special_tokens": [7]},
        {"pad_token": {"lstrip": True}},
        {"tokenizer_class": "BertTokenizer", "strip_accents": "perhaps"},
    ],
    ids=str,
)
def test_a_configuration_with_wrong_values_is_an_error_of_one_line(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json has a value of the wrong kind") as caught:
        load(bert_folder(tmp_path, **config))
    assert "\n" not in str(caught.value)


def test_remote_code_is_refused_and_never_run(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, auto_map={"AutoTokenizer": ["evil.Tokenizer", None]}, tokenizer_class="Evil")
    (folder / "evil.py").write_text("raise SystemExit('was run')")
    with pytest.raises(
        TokenizerError, match=r"auto_map in tokenizer_config\.json names code, evil\.Tokenizer"
    ) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_a_token_that_is_known_is_not_added_again(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path, sep_token="[SEP]", eos_token="[SEP]")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([AddedToken("[EXTRA]")])
    backend.save(str(folder / "tokenizer.json"))
    assert load(folder).get_vocab_size() == backend.get_vocab_size()
