"""Scores of a generative model's answer equal those that its whole vocabulary gives, one sequence at a time."""

import gc
import itertools
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from engine.model.tasks import AnswerScore
from engine.transformers.loading import load_model
from engine.transformers.selftest import choose_forward
from engine.types import OutputKind
from tests.engine.engines import difference
from tests.engine.tiny_models import GENERATING, VOCAB_SIZE, WholeReference, arbitrary, save_whole
from tests.engine.transformers.scored_models import SEQLENS, choose, compute, read, refusal
from tests.tiers import full_but

GENERATING_FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt2",
    "granite",
)


def next_token_logits(folder: Path, sequences: list[list[int]]) -> NDArray[np.float32]:
    """[B, V]"""
    reference = WholeReference(folder, GENERATING)
    return np.stack([reference.scores(sequence)[-1] for sequence in sequences])


@pytest.mark.parametrize(
    ("family", "is_tied"),
    full_but(
        [("qwen3", True), ("llama", False), ("gemma2", True), ("granite", False)],
        itertools.product(GENERATING_FAMILIES, (True, False)),
    ),
)
def test_scores_of_an_answer_are_those_of_the_whole_vocabulary(family: str, is_tied: bool, tmp_path: Path) -> None:
    caps = {"final_logit_softcapping": 2.0} if family.startswith(("gemma2", "gemma3")) else {}
    folder = save_whole(family, tmp_path / "model", GENERATING, tie_word_embeddings=is_tied, **caps)
    sequences = arbitrary(SEQLENS)
    logits = next_token_logits(folder, sequences)
    choice = choose(folder, AnswerScore(yes_id=11, no_id=7))
    rows = compute(choice, OutputKind.LOGITS, sequences).values
    assert difference(rows, logits[:, [11]] - logits[:, [7]]) <= 1e-5
    yes = choose(folder, AnswerScore(yes_id=11, no_id=None))
    assert difference(compute(yes, OutputKind.LOGITS, sequences).values, logits[:, [11]]) <= 1e-5


def test_a_bias_of_the_vocabulary_counts(tmp_path: Path) -> None:
    folder = save_whole("phi", tmp_path / "model", GENERATING)
    sequences = arbitrary(SEQLENS)
    logits = next_token_logits(folder, sequences)
    rows = compute(choose(folder, AnswerScore(yes_id=11, no_id=7)), OutputKind.LOGITS, sequences).values
    assert difference(rows, logits[:, [11]] - logits[:, [7]]) <= 1e-5
    bias = load_file(folder / "model.safetensors")["lm_head.bias"]
    assert abs(bias[11] - bias[7]) > 0.01


@pytest.mark.holds("The whole vocabulary is never projected at once")
def test_the_other_rows_of_the_vocabulary_are_not_kept(tmp_path: Path) -> None:
    found = read(save_whole("qwen3", tmp_path / "model", GENERATING), AnswerScore(yes_id=11, no_id=7))
    model = load_model(found, dtype=torch.float32)
    vocabulary = weakref.ref(model.get_output_embeddings().weight)  # type: ignore[no-untyped-call]
    choice = choose_forward(model, found)
    del model
    gc.collect()
    assert vocabulary() is None
    assert compute(choice, OutputKind.LOGITS, [[5, 6]]).values.shape == (1, 1)


def test_an_answer_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = save_whole("qwen3", tmp_path / "model", GENERATING)
    assert f"the answer token {VOCAB_SIZE} is not among" in refusal(folder, AnswerScore(yes_id=VOCAB_SIZE, no_id=7))
