"""Heads of fused models give what transformers' classes give, one sequence at a time, and what would not is refused.

Cells of tests/parity hold each class as it is by default; here are its other configurations, and the other forms that
checkpoints have.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.fused.assembly import Model, assemble
from engine.fused.model.reference import ReferenceOps
from engine.fused.offer import FusedConfig
from engine.fused.outputs import Modules
from engine.fused.weights import FusedWeights, open_model
from engine.model.tasks import AnswerScore, Head, SequenceScores, TokenScores, VocabularyWeights
from engine.types import OutputKind
from tests.engine import engines
from tests.engine.engines import dense, difference, results
from tests.engine.folder_files import change
from tests.engine.fused.model.models import CPU
from tests.engine.tiny_models import (
    GENERATING,
    MASKED,
    SCORING_SEQUENCES,
    SCORING_TOKENS,
    VOCAB_SIZE,
    WholeReference,
    arbitrary,
    batch,
    save_whole,
)
from tests.engine.transformers.scored_models import SEQLENS, read
from tests.tiers import full, full_but

pytestmark = pytest.mark.holds("Heads equal the library's")

LABELS = ("bad", "fair", "good")
SCORES, TOKENS, WORDS = SequenceScores(labels=LABELS), TokenScores(labels=LABELS), VocabularyWeights()
ANSWER, YES = AnswerScore(yes_id=11, no_id=7), AnswerScore(yes_id=11, no_id=None)
_BIASED = {"classifier_bias": True, "norm_bias": True, "classifier_activation": "silu"}
Tensors = dict[str, Tensor]


def opened(folder: Path, *heads: Head, dtype: torch.dtype = torch.float32) -> tuple[FusedConfig, FusedWeights]:
    chosen = FusedConfig(folder=read(folder, *heads), device=CPU, capability=None, dtype=dtype)
    return chosen, open_model(chosen)[0]


def compute(folder: Path, head: Head, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Of all sequences as one batch; sparse rows have a number for each word."""
    chosen, source = opened(folder, head)
    model = Model(
        name="m",
        reason="asked",
        chosen=chosen,
        spec=source.spec,
        weights=source.weights(),
        modules=Modules(),
        ops=ReferenceOps(),
        max_num_seqs=64,
        num_threads=1,
    )
    engine = assemble(model, max_num_tokens=512)
    found = results(engine, dataclasses.replace(batch(sequences), outputs=head.output))[head.output]
    engine.close()
    return dense(found, VOCAB_SIZE) if head.output is OutputKind.SPARSE else found.values


def refusal(folder: Path, head: Head) -> str:
    return engines.refusal(opened, folder, head)


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """The folder, its tensors changed."""
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def scores(folder: Path, purpose: Any, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
    reference = WholeReference(folder, purpose)
    return [reference.scores(sequence) for sequence in sequences]


def word_weights(folder: Path, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """[B, V], by the library's scores."""
    largest = np.stack([of_tokens.max(axis=0) for of_tokens in scores(folder, MASKED, sequences)])
    weights: NDArray[np.float32] = np.log1p(np.maximum(largest, 0))
    return weights


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("modernbert, mean", {}),
        ("modernbert", _BIASED),
        ("eurobert, bos", {}),
        ("eurobert, mean", {}),
        *full(("electra, wide", {}), ("gemma3_text, bidirectional", {}), ("qwen3 with a window", {})),
    ],
)
def test_scores_of_sequences(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    folder = save_whole(family, tmp_path / "model", SCORING_SEQUENCES, num_labels=3, **config)
    sequences = arbitrary(SEQLENS)
    expected = np.stack(scores(folder, SCORING_SEQUENCES, sequences))
    assert np.abs(expected).max() > 0.05
    assert difference(compute(folder, SCORES, sequences), expected) <= 1e-5


@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize("pad_token_id", [7, None])
def test_a_text_that_ends_with_the_padding_token(pad_token_id: int | None, tmp_path: Path) -> None:
    """The library scores the last token that is not padding, or the first, even of a sequence alone."""
    folder = save_whole("qwen3", tmp_path / "model", SCORING_SEQUENCES, num_labels=3, pad_token_id=pad_token_id)
    sequences = [[9, 8, 7], [9, 8], [7, 7], [7, 9, 8, 7, 7], [7]]
    found = compute(folder, SCORES, sequences)
    assert difference(found, scores(folder, SCORING_SEQUENCES, sequences)) <= 1e-5
    assert (difference(found[0], found[1]) < 1e-5) == (pad_token_id == 7)


def test_scores_of_tokens_with_all_biases(tmp_path: Path) -> None:
    folder = save_whole("modernbert", tmp_path / "model", SCORING_TOKENS, num_labels=3, **_BIASED)
    sequences = arbitrary(SEQLENS)
    expected = np.concatenate(scores(folder, SCORING_TOKENS, sequences))
    assert difference(compute(folder, TOKENS, sequences), expected) <= 1e-5


ANSWERING = [
    (family, is_tied)
    for family in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3")
    for is_tied in (True, False)
]


@pytest.mark.parametrize(("family", "is_tied"), full_but([("qwen3", True), ("gemma2", False)], ANSWERING))
def test_scores_of_an_answer(family: str, is_tied: bool, tmp_path: Path) -> None:
    """A key of another architecture caps nothing, as in the library."""
    cap = {"final_logit_softcapping": 0.5}
    folder = save_whole(family, tmp_path / "model", GENERATING, tie_word_embeddings=is_tied, **cap)
    sequences = arbitrary(SEQLENS)
    logits = np.stack([of_tokens[-1] for of_tokens in scores(folder, GENERATING, sequences)])
    assert (np.abs(logits).max() <= 0.5) == (family in ("gemma2", "gemma3_text"))
    assert difference(compute(folder, ANSWER, sequences), logits[:, [11]] - logits[:, [7]]) <= 1e-5
    assert difference(compute(folder, YES, sequences), logits[:, [11]]) <= 1e-5


@pytest.mark.holds("The whole vocabulary is never projected at once")
def test_of_the_vocabulary_only_the_answers_are_kept(tmp_path: Path) -> None:
    folder = save_whole("qwen3", tmp_path / "model", GENERATING, tie_word_embeddings=False)
    tensors = opened(folder, ANSWER, dtype=torch.bfloat16)[1].weights().tensors
    stored = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(tensors["head.0.weight"], stored[[11, 7]])  # in float32
    assert [name for name, tensor in tensors.items() if len(tensor) == VOCAB_SIZE] == ["words"]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("bert", {"hidden_act": "gelu_new"}),
        ("modernbert", {"decoder_bias": False, **_BIASED}),
        ("eurobert", {"mlp_bias": True}),
        *full(("roberta", {"tie_word_embeddings": False}), ("electra, wide", {}), ("gte without types", {})),
    ],
)
def test_weights_of_words(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    folder = save_whole(family, tmp_path / "model", MASKED, **config)
    sequences = arbitrary(SEQLENS)
    assert difference(compute(folder, WORDS, sequences), word_weights(folder, sequences)) <= 1e-5


DECODER, TWIN, WORD_ROWS = "cls.predictions.decoder", "cls.predictions.bias", "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize("plus", [{TWIN: 0.0}, {f"{DECODER}.bias": 0.0}, {TWIN: 0.5, f"{DECODER}.bias": 1.0}])
def test_a_bias_by_either_name_or_both(plus: dict[str, float], tmp_path: Path) -> None:
    """Where both are there and differ, the library computes with the layer's own."""
    folder = save_whole("bert", tmp_path / "model", MASKED)
    sequences = arbitrary(SEQLENS)

    def named(tensors: Tensors) -> Tensors:
        bias = tensors.pop(TWIN)
        return tensors | {name: bias + more for name, more in plus.items()}

    rewrite(folder, named)
    assert difference(compute(folder, WORDS, sequences), word_weights(folder, sequences)) <= 1e-5


@pytest.mark.parametrize("plus", [0.0, 0.1])
def test_a_matrix_that_is_tied_and_stored(plus: float, tmp_path: Path) -> None:
    """With the numbers of the embedding table it takes no memory of its own; with others the library uses it."""
    folder = save_whole("bert", tmp_path / "model", MASKED)
    rewrite(folder, lambda tensors: tensors | {f"{DECODER}.weight": tensors[WORD_ROWS] + plus})
    sequences = arbitrary(SEQLENS)
    assert difference(compute(folder, WORDS, sequences), word_weights(folder, sequences)) <= 1e-5
    tensors = opened(folder, WORDS, dtype=torch.bfloat16)[1].weights().tensors
    assert (tensors["vocabulary.words.weight"] is tensors["words"]) == (plus == 0.0)


def test_the_name_of_a_norm_in_the_code_of_gte(tmp_path: Path) -> None:
    folder = save_whole("gte", tmp_path / "model", MASKED)
    sequences = arbitrary(SEQLENS)
    expected = word_weights(folder, sequences)
    rewrite(
        folder,
        lambda tensors: {name.replace("lm_head.layer_norm", "lm_head.norm"): tensors[name] for name in tensors},
    )
    assert "lm_head.norm.weight" in load_file(folder / "model.safetensors")
    assert difference(compute(folder, WORDS, sequences), expected) <= 1e-5


def test_dtypes(tmp_path: Path) -> None:
    """Scores and norms are computed in float32; the vocabulary is too large for it."""
    folder = save_whole("bert", tmp_path / "scores", SCORING_SEQUENCES, num_labels=3)
    weights = opened(folder, SCORES, dtype=torch.bfloat16)[1].weights()
    assert {tensor.dtype for name, tensor in weights.tensors.items() if name.startswith("head.")} == {torch.float32}
    assert not any(name.startswith("head.") for name in weights.linears)
    folder = save_whole("bert", tmp_path / "words", MASKED)
    weights = opened(folder, WORDS, dtype=torch.bfloat16)[1].weights()
    assert weights.tensors["vocabulary.words.weight"] is weights.tensors["words"]
    assert weights.tensors["words"].dtype == torch.bfloat16
    assert weights.tensors["vocabulary.norm.weight"].dtype == torch.float32
    assert weights.linears["vocabulary.dense"].tensors["weight"].dtype == torch.bfloat16


def test_a_classifier_served_for_embeddings_has_no_head(tmp_path: Path) -> None:
    folder = save_whole("bert", tmp_path / "model", SCORING_SEQUENCES, num_labels=3)
    source = opened(folder)[1]
    assert source.spec.head is None
    assert not any(name.startswith("head.") for name in source.weights().tensors)


@pytest.mark.holds("The fused engine refuses what it would compute differently")
@pytest.mark.parametrize(
    ("purpose", "head", "change", "words"),
    [
        (SCORING_SEQUENCES, SCORES, {"bert.pooler.extra.weight": 0}, "'bert.pooler.extra.weight'"),
        (SCORING_SEQUENCES, SCORES, {"classifier.dense.weight": 0}, "'classifier.dense.weight'"),
        (SCORING_SEQUENCES, SCORES, {"classifier.bias": None}, "no tensor 'classifier.bias', which the model's head"),
        (SCORING_SEQUENCES, SCORES, {"classifier.weight": 0}, "'classifier.weight' in"),
        (SCORING_SEQUENCES, SCORES, {"bert.pooler.dense.weight": None}, "'bert.pooler.dense.weight'"),
        (MASKED, WORDS, {f"{DECODER}.bias": 0}, f"'{DECODER}.bias' in"),
        (MASKED, WORDS, {"cls.predictions.transform.dense.bias": None}, "'cls.predictions.transform.dense.bias'"),
        (MASKED, WORDS, {"cls.predictions.other.weight": 0}, "'cls.predictions.other.weight'"),
    ],
)
def test_a_tensor_too_many_or_too_few_or_of_another_shape(
    purpose: Any, head: Head, change: dict[str, int | None], words: str, tmp_path: Path
) -> None:
    folder = save_whole("bert", tmp_path / "model", purpose, num_labels=3)

    def changed(tensors: Tensors) -> Tensors:
        kept = {name: tensor for name, tensor in tensors.items() if change.get(name, 0) is not None}
        return kept | {name: torch.zeros(2, 2) for name, value in change.items() if value is not None}

    assert words in refusal(rewrite(folder, changed), head)


@pytest.mark.holds("The fused engine refuses what it would compute differently")
def test_a_matrix_that_is_neither_tied_nor_there(tmp_path: Path) -> None:
    folder = save_whole("qwen3", tmp_path / "model", GENERATING, tie_word_embeddings=False)
    rewrite(folder, lambda tensors: {name: tensors[name] for name in tensors if name != "lm_head.weight"})
    assert "no tensor 'lm_head.weight'" in refusal(folder, ANSWER)


@pytest.mark.holds("The fused engine refuses what it would compute differently")
@pytest.mark.parametrize(
    ("family", "purpose", "head", "name"),
    [
        ("gemma", GENERATING, ANSWER, "lm_head.bias"),
        ("modernbert", MASKED, WORDS, "decoder.bias"),
        ("eurobert", MASKED, WORDS, "lm_head.bias"),
    ],
)
def test_a_bias_of_a_tied_matrix_that_has_none(
    family: str, purpose: Any, head: Head, name: str, tmp_path: Path
) -> None:
    tied = {"tie_word_embeddings": True, **({"decoder_bias": False} if family == "modernbert" else {})}
    folder = save_whole(family, tmp_path / "model", purpose, **tied)
    rewrite(folder, lambda tensors: tensors | {name: torch.ones(VOCAB_SIZE)})
    assert f"'{name}'" in refusal(folder, head)


@pytest.mark.holds("The fused engine refuses what it would compute differently")
def test_an_answer_beyond_the_vocabulary(tmp_path: Path) -> None:
    folder = save_whole("qwen3", tmp_path / "model", GENERATING, tie_word_embeddings=False)
    words = f"has {VOCAB_SIZE} rows; config.json asks for {VOCAB_SIZE}, and the answers are rows {VOCAB_SIZE}, 7"
    assert words in refusal(folder, AnswerScore(yes_id=VOCAB_SIZE, no_id=7))


@pytest.mark.holds("The fused engine refuses what it would compute differently")
@pytest.mark.parametrize(
    ("family", "head", "config", "words"),
    [
        ("bert", ANSWER, {}, "how BertForMaskedLM computes scores of the next token; --engine transformers"),
        ("bert", WORDS, {"hidden_act": "quick_gelu"}, "'quick_gelu'"),
        ("modernbert", WORDS, {"classifier_activation": "quick_gelu"}, "'quick_gelu'"),
        ("eurobert", SCORES, {"classifier_pooling": "max"}, "classifier_pooling 'max'"),
    ],
)
def test_what_the_head_is_asked_for_is_honoured_or_refused(
    family: str, head: Head, config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = save_whole(family, tmp_path / "model", MASKED)
    change(folder / "config.json", **config)
    assert words in refusal(folder, head)
