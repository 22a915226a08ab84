"""Whole forwards made of the kernels, against the same made of the ops' meaning in torch."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.fused.kernels import TritonOps
from engine.fused.model.forwards import Blocks, Weights, forward_of
from engine.fused.model.ops import Ops
from engine.fused.model.reference import ReferenceOps
from engine.fused.weights import FusedWeights
from tests.engine.fused.kernels.samples import DEVICE
from tests.engine.fused.model.models import inputs_of, save, source_of
from tests.engine.tiny_models import arbitrary, batch
from tests.tiers import full_but

FAMILIES = ("bert", "mpnet", "nomic_bert", "qwen3", "gemma2", "gemma3_text, bidirectional", "modernbert")
SEQLENS = (5, 17, 1, 30)

pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU tests/engine/fused/runner has whole models"),
    # rows of padding hold whatever lay there in memory, and NumPy interprets the kernels
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


def rows_of(source: FusedWeights, weights: Weights, ops: Ops, *, is_pruned: bool) -> Tensor:
    """Of the batch's own tokens or sequences; word 0, which is that of padding, is poisoned."""
    weights.tensors["words"][0] = torch.nan
    forward = forward_of(Blocks(source.spec, weights, ops))
    with torch.inference_mode():
        rows = forward(inputs_of(batch(arbitrary(SEQLENS)), pooling="last"), is_pruned=is_pruned)
    return rows[: len(SEQLENS) if is_pruned else sum(SEQLENS)]


@pytest.mark.holds("Padding never affects a row", "Kernels match their plain reference")
@pytest.mark.parametrize(
    ("family", "is_pruned"),
    full_but([("bert", True)], itertools.product(FAMILIES, [True, False])),
)
def test_the_same_rows(family: str, is_pruned: bool, tmp_path: Path) -> None:
    source = source_of(save(family, tmp_path / "model"))
    weights = source.weights()
    actual, expected = (rows_of(source, weights, ops, is_pruned=is_pruned) for ops in (TritonOps(), ReferenceOps()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
