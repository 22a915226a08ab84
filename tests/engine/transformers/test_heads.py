"""Heads of the library's classes: raw scores of batches equal the whole model's own, one sequence at a time."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from engine.model.tasks import AnswerScore, Head, SequenceScores, TokenScores, VocabularyWeights
from engine.transformers import library_heads, selftest
from engine.transformers.forward import Maker
from engine.transformers.heads import Made, makers_of
from engine.transformers.loading import load_model
from engine.transformers.selftest import choose_forward
from engine.types import Batch, ModelError, OutputKind, Rows
from tests.engine.engines import difference
from tests.engine.folder_files import change
from tests.engine.tiny_models import (
    GENERATING,
    MASKED,
    PADDED,
    SCORING_SEQUENCES,
    SCORING_TOKENS,
    WholeReference,
    arbitrary,
    save,
    save_whole,
)
from tests.engine.transformers.scored_models import SEQLENS, choose, compute, read, refusal
from tests.tiers import full, full_but

FIRST, LAST, MEAN, EACH = "the first token's row", "the last token's row", "the mean of", "all tokens' rows"
LABELS = ("bad", "fair", "good")
SEQUENCE_FAMILIES = {
    "bert": FIRST,
    "roberta": FIRST,
    "xlm-roberta": FIRST,
    "camembert": FIRST,
    "distilbert": FIRST,
    "electra": FIRST,
    "albert": FIRST,
    "mpnet": FIRST,
    "deberta-v2": FIRST,
    "nomic_bert": FIRST,
    "gte": FIRST,
    "jina_embeddings_v3": FIRST,
    "modernbert": FIRST,
    "modernbert, mean": MEAN,
    "eurobert": EACH,
    "eurobert, bos": FIRST,
    "eurobert, mean": MEAN,
    "llama": LAST,
    "llama, bidirectional": LAST,
    "mistral": LAST,
    "qwen2": LAST,
    "qwen3": LAST,
    "qwen3 with a window": LAST,
    "gemma": LAST,
    "gemma2": LAST,
    "gemma3_text": LAST,
    "gemma3_text, bidirectional": LAST,
    "phi3": LAST,
    "gpt2": LAST,
}

# Each way to find the row that scores come from, and each form of the library's heads.
COMMON = (
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "modernbert, mean",
    "eurobert",
    "qwen3",
    "gpt2",
)


@pytest.mark.holds("Heads equal the library's")
@pytest.mark.parametrize(
    ("family", "way"),
    full_but([each for each in SEQUENCE_FAMILIES.items() if each[0] in COMMON], SEQUENCE_FAMILIES.items()),
)
def test_scores_of_sequences_are_the_whole_models(family: str, way: str, tmp_path: Path) -> None:
    folder = save_whole(family, tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    sequences = arbitrary(SEQLENS)
    reference = WholeReference(folder, SCORING_SEQUENCES)
    expected = np.stack([reference.scores(sequence) for sequence in sequences])
    assert np.abs(expected).max() > 0.05
    choice = choose(folder, SequenceScores(labels=LABELS))
    assert any(way in note for note in choice.notes), choice.notes
    assert choice.notes[0].startswith("padded" if family in PADDED else "packed"), choice.notes
    assert difference(compute(choice, OutputKind.LOGITS, sequences).values, expected) <= 1e-5
    alone = [compute(choice, OutputKind.LOGITS, [sequence]).values for sequence in sequences]
    assert difference(np.concatenate(alone), expected) <= 1e-5


@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize("pad_token_id", [7, None])
def test_a_text_that_ends_with_the_padding_token(pad_token_id: int | None, tmp_path: Path) -> None:
    """The library scores the last token that is not padding, even of a sequence alone."""
    folder = save_whole("qwen3", tmp_path / "model", SCORING_SEQUENCES, num_labels=3, pad_token_id=pad_token_id)
    sequences = [[9, 8, 7], [9, 8], [7, 7], [7, 9, 8, 7, 7], [7]]
    reference = WholeReference(folder, SCORING_SEQUENCES)
    rows = compute(choose(folder, SequenceScores(labels=LABELS)), OutputKind.LOGITS, sequences).values
    assert difference(rows, [reference.scores(sequence) for sequence in sequences]) <= 1e-5
    assert (difference(rows[0], rows[1]) < 1e-5) == (pad_token_id == 7)


@pytest.mark.parametrize("family", ["bert", "qwen3", *full("modernbert, mean", "eurobert")])
def test_of_a_model_in_16_bits_scores_are_near(family: str, tmp_path: Path) -> None:
    folder = save_whole(family, tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    sequences = arbitrary(SEQLENS)
    reference = WholeReference(folder, SCORING_SEQUENCES)
    expected = [reference.scores(sequence) for sequence in sequences]
    choice = choose(folder, SequenceScores(labels=LABELS), dtype=torch.bfloat16)
    assert any(SEQUENCE_FAMILIES[family] in note for note in choice.notes)
    assert 1e-5 < difference(compute(choice, OutputKind.LOGITS, sequences).values, expected) < 0.2


def test_a_head_that_needs_its_own_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    monkeypatch.setattr(library_heads._StandIn, "_pooled", lambda _, rows: rows[:, 0])
    assert "BertForSequenceClassification can't be run on its own" in refusal(folder, SequenceScores(labels=LABELS))


@pytest.mark.parametrize("family", ["bert", "eurobert", "eurobert, mean", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_that_hardly_differ_tell_which_rows_they_come_from(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """As of a reranker that finds nothing in arbitrary texts: the bias is nearly all there is."""
    found = read(save_whole(family, tmp_path / "model", SCORING_SEQUENCES, num_labels=1), SequenceScores(labels=("a",)))
    model = load_model(found, dtype=dtype)
    last: Any = model.score if family == "qwen3" else model.classifier
    last.weight *= 1e-3
    if last.bias is not None:
        last.bias.fill_(8.0)
    choice = choose_forward(model, found)
    assert any(SEQUENCE_FAMILIES[family] in note for note in choice.notes), choice.notes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_shares_what_it_does_not_cast(dtype: torch.dtype, tmp_path: Path) -> None:
    """A vocabulary is large, and the model that the head was made of stays as it is."""
    folder = save_whole("bert", tmp_path / "model", MASKED)
    whole = load_model(read(folder, VocabularyWeights()), dtype=dtype)
    decoder = whole.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    for asked in (torch.float32, None):
        copied = library_heads.LibraryHead(whole, dtype=asked)._model
        shared = copied.get_output_embeddings().weight is decoder  # type: ignore[no-untyped-call]
        assert shared == (asked in (None, dtype))
        assert {tensor.dtype for tensor in copied.parameters()} == {asked or dtype}
        assert not any(module is whole.base_model for module in copied.modules())
        assert {tensor.dtype for tensor in whole.parameters()} == {dtype}


def test_a_bare_transformer_has_no_head(tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(save("bert", tmp_path / "model"))
    with pytest.raises(ModelError, match="BertModel has no bare transformer in it"):
        library_heads.LibraryHead(model)


# --- the engine


@pytest.mark.holds("Heads equal the library's", "What a model is for")
@pytest.mark.parametrize(
    ("purpose", "head"),
    [
        (SCORING_SEQUENCES, SequenceScores(labels=LABELS)),
        (SCORING_TOKENS, TokenScores(labels=LABELS)),
        (GENERATING, AnswerScore(yes_id=11, no_id=7)),
        (MASKED, VocabularyWeights()),
        (MASKED, VocabularyWeights(pooling="sum", activation="log1p_relu")),
    ],
)
def test_a_head_that_is_off_is_refused(
    purpose: Any, head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = "roberta" if purpose in (GENERATING, MASKED) else "bert"
    folder = save_whole(family, tmp_path / "model", purpose, num_labels=3, is_decoder=purpose is GENERATING)
    choose(folder, head)

    def off(*arguments: Any) -> Made:
        made = makers_of(*arguments)
        return dataclasses.replace(made, makers={kind: nudged(maker) for kind, maker in made.makers.items()})

    def nudged(maker: Maker) -> Maker:
        def make(token_rows: torch.Tensor, some: Batch) -> Rows:
            rows = maker(token_rows, some)
            values = rows.values.copy()
            values[3, -1] += 0.01
            return Rows(values, rows.offsets)

        return make

    monkeypatch.setattr(selftest, "makers_of", off)
    assert "gives scores that differ by" in refusal(folder, head)


# --- loading


def test_every_head_needs_its_weights(tmp_path: Path) -> None:
    bare = save("bert", tmp_path / "bare")
    assert "classifier.bias and 1 others are missing" in refusal(bare, SequenceScores(labels=("a", "b")))
    assert "classifier.bias and 1 others are missing" in refusal(bare, TokenScores(labels=("a", "b")))
    decoder = save("qwen3", tmp_path / "decoder")
    change(decoder / "config.json", tie_word_embeddings=False)
    assert "lm_head.weight" in refusal(decoder, AnswerScore(yes_id=11, no_id=7))


def test_a_pooler_is_missed_where_scores_come_from_it(tmp_path: Path) -> None:
    folder = save_whole("bert", tmp_path / "model", SCORING_TOKENS, num_labels=3)  # has none
    choose(folder, TokenScores(labels=LABELS))
    assert "bert.pooler.dense.bias" in refusal(folder, SequenceScores(labels=LABELS))


def test_labels_that_are_not_those_of_the_head_are_refused(tmp_path: Path) -> None:
    folder = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    assert "names 2 labels, but the head gives 3" in refusal(folder, SequenceScores(labels=("a", "b")))
    found = read(folder, SequenceScores(labels=("a", "b")))
    change(folder / "config.json", id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1})
    with pytest.raises(ModelError, match=r"^the weight 'classifier.bias' in .* has the shape \[3\]"):
        load_model(found, dtype=torch.float32)


def test_an_architecture_without_such_a_head_is_refused(tmp_path: Path) -> None:
    folder = save("nomic_bert", tmp_path / "model")
    assert "no 'nomic_bert' model for generation" in refusal(folder, AnswerScore(yes_id=11, no_id=7))
