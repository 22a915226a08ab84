"""Tokens that tokenizer_config.json names, and tokenizer.json uses others of: no guess at which were trained with."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from tests.tokenizer_pool.builders import qwen, roberta, unigram, word_piece, write_json
from tokenizer_pool.loading import load
from wire.tokenizer_files import TokenizerError

CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"

bert = partial(word_piece, lowercase=True)


def qwen2() -> tokenizers.Tokenizer:
    backend = qwen()
    step = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), step])
    return backend


@pytest.mark.parametrize(
    ("build", "name", "file", "wrong", "right"),
    [
        (bert, "BertTokenizerFast", CONFIG, {"cls_token": "[MASK]"}, {"cls_token": "[CLS]"}),
        (bert, "MPNetTokenizer", MAP, {"sep_token": "[PAD]"}, {"sep_token": {"content": "[SEP]"}}),
        (bert, "BertTokenizer", CONFIG, {"unk_token": {"content": "[PAD]"}}, {"unk_token": "[UNK]"}),
        (roberta, "RobertaTokenizer", CONFIG, {"sep_token": "<pad>"}, {"bos_token": "<pad>"}),
        (unigram, "XLMRobertaTokenizer", CONFIG, {"eos_token": "<mask>"}, {"sep_token": "<mask>"}),
        (qwen2, "Qwen2Tokenizer", CONFIG, {"add_prefix_space": True}, {"add_prefix_space": False}),
        (unigram, "XLMRobertaTokenizer", CONFIG, {"add_prefix_space": False}, {"add_prefix_space": True}),
    ],
)
def test_a_configuration_that_disagrees_is_refused(
    tmp_path: Path, build: Any, name: str, file: str, wrong: dict[str, Any], right: dict[str, Any]
) -> None:
    build().save(str(tmp_path / "tokenizer.json"))
    for fields in (right, wrong):
        write_json(tmp_path / CONFIG, {"tokenizer_class": name})
        write_json(tmp_path / file, {"tokenizer_class": name, **fields})
        if fields is right:
            load(tmp_path)
    (key,) = wrong
    with pytest.raises(
        TokenizerError, match=rf"{key}.* in tokenizer_config\.json or special_tokens_map\.json"
    ) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
