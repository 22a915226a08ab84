"""Real all-MiniLM-L6-v2 in FP8, by torch's product of scaled matrices on the CPU, and the gate on it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.fused.model.linear import PlainLinear
from engine.fused.model.reference import ReferenceOps
from engine.fused.quantization import gate, gate_texts, quantizing
from engine.fused.quantization.gate import Rows
from engine.fused.quantization.quantizing import QuantizableLinears
from engine.model import model_folder
from engine.selftest.fidelity import fidelity
from engine.selftest.sample_ids import Sequences
from tests.engine.fused.model.models import inputs_of, load_fused
from tests.engine.tiny_models import batch

DOWN = [f"layers.{layer}.down" for layer in range(6)]


class MiniLM:
    """The fused model with its mean pooling."""

    def __init__(self, folder: Path) -> None:
        self.fused = load_fused(folder)
        self.plain = {
            name: linear for name, linear in self.fused.weights.linears.items() if isinstance(linear, PlainLinear)
        }
        self.switch = QuantizableLinears(self.fused.weights.linears, plain=self.plain.__getitem__)
        self.sequences = gate_texts.sequences(model_folder.read(folder))

    def rows(self, sequences: Sequences, quantized: frozenset[str]) -> Rows:
        self.switch.set(quantized)
        inputs = inputs_of(batch([sequence.tolist() for sequence in sequences]))
        with torch.inference_mode():
            rows = ReferenceOps().pool(self.fused.forward(inputs, is_pruned=False), inputs.cu_seqlens)
        return np.asarray(rows[: len(sequences)].numpy(), np.float32)

    def plant(self, name: str) -> None:
        """A neuron that never fires any more, and whose outgoing weights are huge: plain numbers do not mind, but it
        takes the range of FP8 from all the other weights of `down`."""
        up, down = (self.plain[f"{name}.{kind}"] for kind in ("gate_up", "down"))
        assert up.bias is not None
        up.weight[0], up.bias[0], down.weight[:, 0] = 0, 0, 1e6


@pytest.fixture
def minilm(minilm_folder: Path) -> MiniLM:
    return MiniLM(minilm_folder)


@pytest.mark.full
def test_what_is_eligible(minilm: MiniLM) -> None:
    names = quantizing.eligible(minilm.fused.spec)
    assert names == tuple(f"layers.{layer}.{kind}" for layer in range(6) for kind in ("qkv", "gate_up", "down"))
    assert set(names) < set(minilm.plain)


@pytest.mark.full
def test_a_planted_bad_layer_goes_back_and_nothing_else(minilm: MiniLM) -> None:
    short = [sequence for sequence in minilm.sequences if len(sequence) < 40]
    assert not gate.check(minilm.rows, DOWN, short).reverted
    before = minilm.rows(short, frozenset())
    minilm.plant("layers.3")
    assert fidelity(minilm.rows(short, frozenset()), before).min_cosine > 0.999
    outcome = gate.check(minilm.rows, DOWN, short)
    assert outcome.passed
    assert outcome.reverted == ("layers.3.down",)
    assert outcome.fidelity_of_all.p1_cosine < 0.98
    assert outcome.num_evaluations <= 4


@pytest.mark.full
def test_a_planted_layer_is_the_first_to_go_back_of_all(minilm: MiniLM) -> None:
    short = [sequence for sequence in minilm.sequences if len(sequence) < 40][::3]
    minilm.plant("layers.3")
    names = quantizing.eligible(minilm.fused.spec)
    outcome = gate.check(minilm.rows, names, short)
    assert outcome.passed
    assert "layers.3.down" in outcome.reverted
    assert any(name.endswith("qkv") for name in outcome.quantized)
