"""Folders whose tokenizer_config.json names a class for another kind of tokenizer.json: the file decides, as in
transformers 4, with which the models were made. transformers 5 builds the class's own around its vocabulary.

huggingface/sentence-transformers, tests/sparse_encoder/test_pretrained.py, leaves such a model out for that reason.
"""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.engine.folder_files import write
from tests.parity.repositories import vocabularies
from tests.parity.repositories.vocabularies import Words
from tokenizer_pool import loading


@pytest.mark.parametrize(
    ("tokenizer_class", "words"),
    [
        ("RobertaTokenizer", Words.CASED),  # CamemBERT v2
        ("BertTokenizer", Words.UNIGRAM),  # a multilingual MiniLM, which is a BERT
        ("BertTokenizer", Words.MODERN),
    ],
)
def test_tokenizer_json_decides(tokenizer_class: str, words: Words, tmp_path: Path) -> None:
    vocabularies.save(words, tmp_path)
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": tokenizer_class})
    text = "How are you?"
    as_it_stands = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text)
    assert loading.load(tmp_path).encode(text).ids == as_it_stands.ids
