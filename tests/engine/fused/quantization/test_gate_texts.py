"""The gate's texts are many and various, and their ids are those that the tokenizer pool makes."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from engine.fused.quantization import gate_texts
from engine.model import model_folder
from engine.selftest import sample_ids
from tokenizer_pool import tokenizer as pool
from tokenizer_pool.messages import TokenizerSpec


def test_there_are_many_of_every_length() -> None:
    texts = gate_texts.texts()
    assert len(set(texts)) == len(texts) >= 128
    num_words = sorted(len(text.split()) for text in texts)
    assert num_words[0] == 1
    assert 350 <= num_words[-1] <= 500
    assert sum(not text.isascii() for text in texts) >= len(texts) / 3
    assert all(text == text.strip() or set(text) <= set("la. ") for text in texts)


def test_ids_are_those_of_the_tokenizer_pool(minilm_folder: Path) -> None:
    folder = model_folder.read(minilm_folder)
    tokenizer = pool.Tokenizer(TokenizerSpec(folder=str(minilm_folder), max_seqlen=folder.max_seqlen))
    tokens = tokenizer.encode(list(gate_texts.texts()))
    sequences = gate_texts.sequences(folder)
    np.testing.assert_array_equal(np.concatenate(sequences), tokens.token_ids)


def test_text_is_lower_cased_where_the_folder_asks_for_it(minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), do_lower_case=True)
    upper, lower = sample_ids.of_texts(folder, ["HELLO THERE", "hello there"], max_seqlen=8)
    np.testing.assert_array_equal(upper, lower)
    [cut] = sample_ids.of_texts(folder, ["one two three four five six seven eight nine"], max_seqlen=8)
    assert len(cut) == 8


@pytest.mark.parametrize(("max_seqlen", "num_long"), [(256, 0), (512, 0), (1024, 1), (8192, 4)])
def test_long_texts_are_as_long_as_the_model_takes(max_seqlen: int, num_long: int, minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), max_seqlen=max_seqlen)
    lengths = [len(sequence) for sequence in gate_texts.long_sequences(folder, is_cpu=False)]
    assert len(lengths) == num_long
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[:1] == [max_seqlen][:num_long]
    assert all(length > 512 for length in lengths)


def test_a_cpu_leaves_out_what_would_take_it_too_long(minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), max_seqlen=8192)
    assert all(len(sequence) < 2048 for sequence in gate_texts.long_sequences(folder, is_cpu=True))


def test_a_tokenizer_that_knows_no_word_gets_arbitrary_ids(minilm_folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 4, "w5": 5}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = dataclasses.replace(model_folder.read(minilm_folder), path=tmp_path, max_seqlen=8192)
    for found in (gate_texts.sequences(folder), gate_texts.long_sequences(folder, is_cpu=False)):
        ids, counts = np.unique(np.concatenate(found), return_counts=True)
        assert len(ids) > 500
        assert counts.max() < counts.sum() / 10


def test_without_a_tokenizer_ids_are_arbitrary(minilm_folder: Path, tmp_path: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), path=tmp_path)
    sequences = sample_ids.of_texts(folder, ["one", "one two three"], max_seqlen=4)
    assert [len(sequence) for sequence in sequences] == [3, 4]
    assert all(sequence.max() < folder.vocab_size for sequence in sequences)
