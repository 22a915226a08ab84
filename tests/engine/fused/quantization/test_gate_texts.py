"""The texts on which the gate compares: of every kind and length, and pairs with the ids that service gives them."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from engine.fused.quantization import gate_texts
from engine.model import model_folder
from engine.model.model_folder import ModelFolder
from engine.model.tasks import PairTemplate, Task
from engine.selftest import sample_ids
from tokenizer_pool import tokenizer as pool
from tokenizer_pool.messages import TokenizerSpec
from wire.parts import Part


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
    sequences = gate_texts.fixed(folder).sequences
    np.testing.assert_array_equal(np.concatenate(sequences), tokens.token_ids)


def test_text_is_lower_cased_where_the_folder_asks_for_it(minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), do_lower_case=True)
    upper, lower = sample_ids.of_texts(folder, ["HELLO THERE", "hello there"], max_seqlen=8)
    np.testing.assert_array_equal(upper, lower)
    [cut] = sample_ids.of_texts(folder, ["one two three four five six seven eight nine"], max_seqlen=8)
    assert len(cut) == 8


def long_of(folder: ModelFolder, *, is_cpu: bool) -> sample_ids.Sequences:
    """Those that only `fixed_and_long` has."""
    found = gate_texts.fixed_and_long(folder, is_cpu=is_cpu)
    assert found.num_ranked == len(gate_texts.fixed(folder).sequences)
    return found.sequences[found.num_ranked :]


@pytest.mark.parametrize(("max_seqlen", "num_long"), [(256, 0), (512, 0), (1024, 1), (8192, 4)])
def test_long_texts_are_as_long_as_the_model_takes(max_seqlen: int, num_long: int, minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), max_seqlen=max_seqlen)
    lengths = [len(sequence) for sequence in long_of(folder, is_cpu=False)]
    assert len(lengths) == num_long
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[:1] == [max_seqlen][:num_long]
    assert all(length > 512 for length in lengths)


def test_a_cpu_leaves_out_what_would_take_it_too_long(minilm_folder: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), max_seqlen=8192)
    assert all(len(sequence) < 2048 for sequence in long_of(folder, is_cpu=True))


def test_a_tokenizer_that_knows_no_word_gets_arbitrary_ids(minilm_folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 4, "w5": 5}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = dataclasses.replace(model_folder.read(minilm_folder), path=tmp_path, max_seqlen=8192)
    for found in (gate_texts.fixed(folder).sequences, long_of(folder, is_cpu=False)):
        ids, counts = np.unique(np.concatenate(found), return_counts=True)
        assert len(ids) > 500
        assert counts.max() < counts.sum() / 10


def test_without_a_tokenizer_ids_are_arbitrary(minilm_folder: Path, tmp_path: Path) -> None:
    folder = dataclasses.replace(model_folder.read(minilm_folder), path=tmp_path)
    sequences = sample_ids.of_texts(folder, ["one", "one two three"], max_seqlen=4)
    assert [len(sequence) for sequence in sequences] == [3, 4]
    assert all(sequence.max() < folder.vocab_size for sequence in sequences)


TEMPLATE = PairTemplate(
    parts=("judge this: {instruction}", "the question is {query}", "and the answer: {document}", "yes or no?"),
    instruction="whether it answers",
)


def reranker(minilm_folder: Path, template: PairTemplate | None = None) -> ModelFolder:
    folder = model_folder.read(minilm_folder)
    return dataclasses.replace(folder, task=Task.RERANK, template=template, max_seqlen=1500)


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["joined", "template"])
def test_pairs_are_those_of_the_tokenizer_pool(template: PairTemplate | None, minilm_folder: Path) -> None:
    folder = reranker(minilm_folder, template)
    parts, instruction = (template.parts, template.instruction) if template else ((), "")
    queries, documents = zip(*gate_texts.pairs(), strict=True)
    tokenizer = pool.Tokenizer(TokenizerSpec(folder=str(minilm_folder), max_seqlen=1024, template=parts))
    expected = tokenizer.encode(queries, pair_texts=documents, prompt=instruction)
    found = gate_texts.fixed(folder)
    np.testing.assert_array_equal(np.concatenate(found.sequences), expected.token_ids)
    assert [len(sequence) for sequence in found.sequences] == np.diff(expected.offsets).tolist()
    if template is None:
        assert found.types is not None
        np.testing.assert_array_equal(np.concatenate(found.types), expected.parts[Part.TOKEN_TYPE_IDS])
    else:
        assert found.types is None


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["joined", "template"])
def test_long_pairs_are_cut_as_in_service(template: PairTemplate | None, minilm_folder: Path) -> None:
    folder = dataclasses.replace(reranker(minilm_folder, template), max_seqlen=40)
    queries, documents = zip(*gate_texts.pairs(), strict=True)
    spec = TokenizerSpec(folder=str(minilm_folder), max_seqlen=40, template=template.parts if template else ())
    expected = pool.Tokenizer(spec).encode(
        queries, pair_texts=documents, prompt=template.instruction if template else ""
    )
    assert expected.truncated.sum() > 20
    np.testing.assert_array_equal(np.concatenate(gate_texts.fixed(folder).sequences), expected.token_ids)


def test_a_hundred_documents_are_for_one_query(minilm_folder: Path) -> None:
    found = gate_texts.pairs()
    assert found[0][0] == found[99][0] != found[100][0]
    assert len({document for _, document in found}) == len(found) >= 128
    texts = gate_texts.fixed_and_long(reranker(minilm_folder), is_cpu=False)
    assert texts.num_ranked == 100
    assert len(texts.sequences) == len(found) + 2
    assert texts.types is not None
    assert [len(own) for own in texts.types] == [len(sequence) for sequence in texts.sequences]


def of_another_task(folder: ModelFolder, tmp_path: Path) -> ModelFolder:
    return dataclasses.replace(folder, task=Task.CLASSIFY)


def of_a_reward_model(folder: ModelFolder, tmp_path: Path) -> ModelFolder:
    (tmp_path / "Some-Reward-8B").symlink_to(folder.path)
    return dataclasses.replace(folder, path=tmp_path / "Some-Reward-8B")


def test_a_folder_above_says_nothing_of_the_model(minilm_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "reranker").symlink_to(minilm_folder)
    folder = dataclasses.replace(reranker(minilm_folder), path=tmp_path / "rewards" / "reranker")
    assert gate_texts.takes_pairs(folder)


@pytest.mark.parametrize("change", [of_another_task, of_a_reward_model])
def test_only_rerankers_get_pairs(
    change: Callable[[ModelFolder, Path], ModelFolder], minilm_folder: Path, tmp_path: Path
) -> None:
    found = gate_texts.fixed(change(reranker(minilm_folder), tmp_path))
    assert (found.num_ranked, found.types) == (len(gate_texts.texts()), None)


def test_pairs_without_a_tokenizer_have_arbitrary_ids(minilm_folder: Path, tmp_path: Path) -> None:
    found = gate_texts.fixed(dataclasses.replace(reranker(minilm_folder), path=tmp_path))
    assert (len(found.sequences), found.types) == (len(gate_texts.pairs()), None)
