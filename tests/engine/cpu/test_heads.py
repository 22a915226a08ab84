"""Heads of the compiled engines: what they refuse, keep and take. tests/parity has what they give."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForMaskedLM

from engine.model.tasks import AnswerScore, Head, SequenceScores, TokenVectors, VocabularyWeights
from engine.types import ModelError, OutputKind
from tests.engine.cpu.engines import both_ways, load, load_with_heads, sparse
from tests.engine.engines import difference, results
from tests.engine.tiny_models import (
    GENERATING,
    HIDDEN_SIZE,
    SCORING_SEQUENCES,
    VOCAB_SIZE,
    WholeReference,
    arbitrary,
    batch,
    save,
    save_whole,
)
from tests.tiers import full
from wire.parts import PROMPT_TOKEN

SEQLENS = (5, 17, 1, 30, 9, 9, 13)
SEQUENCES = arbitrary(SEQLENS)
LABELS = ("a", "b", "c")


def test_sums_over_the_vocabulary(tmp_path: Path) -> None:
    """tests/parity has the largest of each entry."""
    folder, head = tmp_path / "model", VocabularyWeights(pooling="sum", activation="log1p_relu")
    save_whole("roberta", folder, AutoModelForMaskedLM)
    reference = WholeReference(folder, AutoModelForMaskedLM)
    loaded = load_with_heads(folder, (head,))
    found = both_ways(loaded, SEQUENCES, OutputKind.SPARSE)
    loaded.close()
    raw = [np.log1p(np.maximum(reference.scores(sequence), 0)) for sequence in SEQUENCES]
    expected = np.stack([np.log1p(rows).sum(axis=0) for rows in raw])
    assert 0 < np.count_nonzero(expected[2]) < VOCAB_SIZE
    for each in found:
        assert difference(sparse(each, len(SEQUENCES)), expected) <= 1e-5


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


@pytest.mark.parametrize(
    ("labels", "given", "message"),
    [
        (("a", "b"), {}, r"^the model gives 3 scores, and config.json has 2 labels$"),
        (LABELS, {"bare": Path("model")}, r"^a compiled model gives either SequenceScores or other rows, not both$"),
        (LABELS, {"quantization": "int8"}, r"^--quantization int8 of the openvino engine is for .* gives LOGITS; "),
    ],
    ids=["fewer labels", "embeddings too", "int8"],
)
def test_what_scores_are_not_given_for(
    labels: tuple[str, ...], given: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    with pytest.raises(ModelError, match=message):
        load_with_heads(Path("model"), (SequenceScores(labels=labels),), cache_dir=str(tmp_path / "cache"), **given)
    assert not list(tmp_path.glob("cache/compiled/*"))


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


def test_a_text_that_is_nothing_but_a_prompt_is_pooled_as_a_whole(tmp_path: Path) -> None:
    loaded = load(save("bert", tmp_path / "model"), pooling="mean")
    sequences = arbitrary([5, 3])
    found = results(loaded, batch(sequences, marks=[PROMPT_TOKEN] * 5 + [PROMPT_TOKEN, 0, 0]))[OutputKind.POOLED].values
    whole = results(loaded, batch(sequences))[OutputKind.POOLED].values
    loaded.close()
    assert difference(found[:1], whole[:1]) <= 1e-6
    assert difference(found[1:], whole[1:]) > 1e-3
