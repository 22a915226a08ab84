"""Scores, labels of tokens and sparse weights from the compiled engines, as transformers' own classes give them.

Each is held against the whole class, one text at a time, alone and in a batch. tests/parity has scores of pairs and of
tokens too.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForMaskedLM

from engine.model.tasks import AnswerScore, Head, SequenceScores, TokenVectors, VocabularyWeights
from engine.types import ModelError, OutputKind
from tests.engine.cpu.engines import both_ways, load_with_heads, sparse
from tests.engine.engines import difference, results
from tests.engine.tiny_models import (
    GENERATING,
    HIDDEN_SIZE,
    SCORING_SEQUENCES,
    VOCAB_SIZE,
    WholeReference,
    arbitrary,
    batch,
    save_whole,
)
from tests.tiers import full

SEQLENS = (5, 17, 1, 30, 9, 9, 13)
SEQUENCES = arbitrary(SEQLENS)
LABELS = ("a", "b", "c")


@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize(
    ("family", "others"),
    [
        ("roberta", {}),
        ("gpt2", {"pad_token_id": 7}),  # which is in texts, too
        *full(
            ("modernbert", {"classifier_pooling": "mean"}),
            ("qwen3", {"pad_token_id": None}),
            ("distilbert", {}),
            ("modernbert", {"classifier_pooling": "cls"}),
            ("qwen3 with a window", {}),
        ),
    ],
    ids=str,
)
def test_scores_of_a_sequence(family: str, others: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_whole(family, folder, SCORING_SEQUENCES, num_labels=3, **others)
    reference = WholeReference(folder, SCORING_SEQUENCES)
    sequences = [*SEQUENCES, [9, 8, 7, 7], [5, 7, 6]]
    loaded = load_with_heads(folder, (SequenceScores(labels=LABELS),))
    together, alone = both_ways(loaded, sequences, OutputKind.LOGITS)
    loaded.close()
    expected = np.stack([reference.scores(sequence) for sequence in sequences])
    assert expected.std() > 0.01
    for found in (together, alone):
        assert found[OutputKind.LOGITS].offsets is None
        assert difference(found[OutputKind.LOGITS].values, expected) <= 1e-5
    assert loaded.info.outputs == OutputKind.LOGITS
    assert (loaded.info.dimensions, loaded.info.token_dimensions) == (3, None)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", VocabularyWeights()),
        ("roberta", VocabularyWeights(pooling="sum", activation="log1p_relu")),
        *full(
            ("distilbert", VocabularyWeights(activation="log1p_relu")),
            ("modernbert", VocabularyWeights(pooling="sum")),
        ),
    ],
    ids=str,
)
def test_weights_of_the_vocabulary(family: str, head: VocabularyWeights, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_whole(family, folder, AutoModelForMaskedLM)
    reference = WholeReference(folder, AutoModelForMaskedLM)
    loaded = load_with_heads(folder, (head,))
    found = both_ways(loaded, SEQUENCES, OutputKind.SPARSE)
    loaded.close()

    activated = [np.log1p(np.maximum(reference.scores(sequence), 0)) for sequence in SEQUENCES]
    if head.activation == "log1p_relu":
        activated = [np.log1p(rows) for rows in activated]
    expected = np.stack([rows.max(axis=0) if head.pooling == "max" else rows.sum(axis=0) for rows in activated])
    assert 0 < np.count_nonzero(expected[2]) < VOCAB_SIZE
    for each in found:
        assert difference(sparse(each, len(SEQUENCES)), expected) <= 1e-5
    assert loaded.info.outputs == OutputKind.SPARSE


@pytest.mark.parametrize(
    ("family", "others", "no_id"),
    [("llama", {}, None), *full(("gemma2", {"final_logit_softcapping": 0.5}, 6), ("qwen3", {}, 6))],
)
def test_the_score_of_an_answer(family: str, others: dict[str, Any], no_id: int | None, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_whole(family, folder, GENERATING, **others)
    reference = WholeReference(folder, GENERATING)
    loaded = load_with_heads(folder, (AnswerScore(yes_id=5, no_id=no_id),))
    together, alone = both_ways(loaded, SEQUENCES, OutputKind.LOGITS)
    loaded.close()
    scores = np.stack([reference.scores(sequence)[-1] for sequence in SEQUENCES])
    expected = scores[:, 5:6] if no_id is None else scores[:, 5:6] - scores[:, 6:7]
    assert expected.std() > 0.01
    for found in (together, alone):
        assert difference(found[OutputKind.LOGITS].values, expected) <= 1e-5


@pytest.mark.parametrize(
    ("kind", "family", "head", "output"),
    [
        (AutoModelForMaskedLM, "bert", VocabularyWeights(), OutputKind.SPARSE),
        *full((SCORING_SEQUENCES, "qwen3", SequenceScores(labels=LABELS), OutputKind.LOGITS)),
    ],
)
def test_a_warm_engine_gives_the_same(kind: Any, family: str, head: Head, output: OutputKind, tmp_path: Path) -> None:
    save_whole(family, tmp_path / "model", kind, num_labels=3, pad_token_id=None if family == "qwen3" else 0)
    found = []
    for _ in range(2):
        loaded = load_with_heads(tmp_path / "model", (head,), cache_dir=str(tmp_path / "cache"))
        found.append(results(loaded, dataclasses.replace(batch(SEQUENCES), outputs=output))[output])
        loaded.close()
    assert len(list((tmp_path / "cache" / "compiled").iterdir())) == 1
    assert difference(found[1].values, found[0].values) == 0


def test_each_use_of_a_folder_is_compiled_for_itself(tmp_path: Path) -> None:
    folder, cache = tmp_path / "model", str(tmp_path / "cache")
    save_whole("bert", folder, AutoModelForMaskedLM)
    for head in (VocabularyWeights(), VocabularyWeights(pooling="sum"), TokenVectors(steps=(), dimensions=HIDDEN_SIZE)):
        load_with_heads(folder, (head,), cache_dir=cache).close()
    assert len(list((tmp_path / "cache" / "compiled").iterdir())) == 3


def test_as_many_scores_as_labels(tmp_path: Path) -> None:
    save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    with pytest.raises(ModelError, match=r"^the model gives 3 scores, and config.json has 2 labels$"):
        load_with_heads(tmp_path / "model", (SequenceScores(labels=("a", "b")),), cache_dir=str(tmp_path / "cache"))
    assert not list((tmp_path / "cache" / "compiled").iterdir())


def test_scores_and_embeddings_are_not_given_at_once(tmp_path: Path) -> None:
    save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    with pytest.raises(ModelError, match=r"^a compiled model gives either SequenceScores or other rows, not both$"):
        load_with_heads(tmp_path / "model", (SequenceScores(labels=LABELS),), bare=tmp_path / "model")


def test_int8_is_for_embeddings(tmp_path: Path) -> None:
    save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    with pytest.raises(ModelError, match=r"^--quantization int8 of the openvino engine is for .* gives LOGITS; "):
        load_with_heads(tmp_path / "model", (SequenceScores(labels=LABELS),), quantization="int8")


def test_scores_of_a_vocabulary_too_large_for_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 * 2 * 120 bytes a token: at 64 tokens 61,440 bytes, in half of the memory."""
    save_whole("bert", tmp_path / "model", AutoModelForMaskedLM)
    monkeypatch.setattr("engine.machine.cores.usable", lambda: 2)
    monkeypatch.setattr("engine.machine.host.memory", lambda: 2 * 61_440)
    load_with_heads(tmp_path / "model", (VocabularyWeights(),)).close()
    monkeypatch.setattr("engine.machine.host.memory", lambda: 2 * 61_439)
    with pytest.raises(ModelError, match="--max-input-length 63 fits"):
        load_with_heads(tmp_path / "model", (VocabularyWeights(),))


def test_answers_beyond_the_vocabulary(tmp_path: Path) -> None:
    save_whole("llama", tmp_path / "model", GENERATING)
    with pytest.raises(
        ModelError, match=r"^the answers' token ids are not among the 120 that the model gives scores of$"
    ):
        load_with_heads(tmp_path / "model", (AnswerScore(yes_id=5, no_id=120),))
