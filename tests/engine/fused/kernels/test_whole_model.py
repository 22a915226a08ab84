"""Whole forwards made of the kernels, against the same made of the ops' meaning in torch; sparse rows end to end."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from engine.fused import loading
from engine.fused.kernels import TritonOps
from engine.fused.model.forwards import Blocks, Weights, forward_of
from engine.fused.model.ops import Ops
from engine.fused.model.reference import ReferenceOps
from engine.fused.weights import FusedWeights
from engine.selftest import selfcheck
from engine.types import Batch, Engine, OutputKind, Results, compute
from tests.engine.engines import dense, load
from tests.engine.fused.kernels.samples import DEVICE
from tests.engine.fused.loaded import load as load_fused
from tests.engine.fused.model.models import BEGIN_ALIKE, NUM_ALIKE, inputs_of, save, source_of
from tests.engine.tiny_models import VOCAB_SIZE, arbitrary, batch, save_whole
from tests.tiers import full, full_but

FAMILIES = ("bert", "mpnet", "nomic_bert", "qwen3", "gemma2", "gemma3_text, bidirectional", "modernbert")
SEQLENS = (5, 17, 1, 30)

pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU tests/engine/fused/runner has whole models"),
    # rows of padding hold whatever lay there in memory, and NumPy interprets the kernels
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


def rows_of(source: FusedWeights, weights: Weights, ops: Ops, made: Batch, *, is_pruned: bool) -> Tensor:
    """Of the batch's own tokens or sequences; word 0, which is that of padding, is poisoned."""
    weights.tensors["words"][0] = torch.nan
    forward = forward_of(Blocks(source.spec, weights, ops))
    with torch.inference_mode():
        rows = forward(inputs_of(made, pooling="last"), is_pruned=is_pruned)
    num_shared = 0 if made.shared is None else int(made.shared.sum())
    return rows[: made.num_seqs if is_pruned else made.num_tokens - num_shared]


@pytest.mark.holds("Padding never affects a row", "Kernels match their plain reference")
@pytest.mark.parametrize(
    ("family", "is_pruned"),
    full_but([("bert", True)], itertools.product(FAMILIES, [True, False])),
)
def test_the_same_rows(family: str, is_pruned: bool, tmp_path: Path) -> None:
    source = source_of(save(family, tmp_path / "model"))
    weights, made = source.weights(), batch(arbitrary(SEQLENS))
    actual, expected = (
        rows_of(source, weights, ops, made, is_pruned=is_pruned) for ops in (TritonOps(), ReferenceOps())
    )
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(("family", "is_pruned"), [("qwen3", True), *full(("qwen3", False), ("gemma2", True))])
def test_the_same_rows_of_sequences_that_begin_alike(family: str, is_pruned: bool, tmp_path: Path) -> None:
    source = source_of(save(family, tmp_path / "model"))
    weights, made = source.weights(), batch(BEGIN_ALIKE, shared=NUM_ALIKE)
    actual, expected = (
        rows_of(source, weights, ops, made, is_pruned=is_pruned) for ops in (TritonOps(), ReferenceOps())
    )
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("ops", [ReferenceOps(), *full(TritonOps())], ids=["reference", "kernels"])
def test_sparse_rows_are_those_of_transformers(ops: Ops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a whole engine, packed and padded as in service."""
    folder = save_whole("bert", tmp_path / "model", AutoModelForMaskedLM)
    sequences = dataclasses.replace(batch(arbitrary(SEQLENS)), outputs=OutputKind.SPARSE)
    monkeypatch.setattr(loading, "_ops", lambda _: ops)
    monkeypatch.setattr(selfcheck, "check", lambda engine, folder, *, dtype: None)  # takes minutes where interpreted
    fused, plain = load_fused(folder, task="sparse"), load("transformers", folder, task="sparse")
    actual, expected = (dense(answer(engine, sequences)[OutputKind.SPARSE], VOCAB_SIZE) for engine in (fused, plain))
    plain.close()
    assert np.count_nonzero(expected) > 100
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def answer(engine: Engine, asked: Batch) -> Results:
    results = compute(engine, asked)
    assert isinstance(results, dict), results
    return results
