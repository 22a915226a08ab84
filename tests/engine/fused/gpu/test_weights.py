"""Weights on their way into a GPU's memory: read in pieces, fused, and kept quantized."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.fused.model.forwards import Weights
from engine.fused.model.linear import Fp8Linear, PlainLinear
from engine.fused.quantization.cache import QuantizedCache, QuantizedModel
from engine.fused.readers import CudaTransfer, Staging
from engine.store.cache import Cache
from tests.engine.fused.checkpoint.test_fuse import flattened
from tests.engine.fused.checkpoint.test_store import model, outcome, same
from tests.engine.fused.model.models import SPEC, source_of
from tests.engine.tiny_models import save

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("num_bytes", [1, 4095, 1 << 20, (32 << 20) + 3, (100 << 20) + 1])
def test_every_byte_arrives(num_bytes: int, tmp_path: Path) -> None:
    file, content = tmp_path / "file", np.random.default_rng(seed=num_bytes).bytes(num_bytes)
    file.write_bytes(content)
    staging = Staging(CudaTransfer(DEVICE))
    targets = [torch.zeros(num_bytes, dtype=torch.uint8, device=DEVICE) for _ in range(3)]
    for target in targets:
        staging.copy(file, 0, target)
    del staging  # what is on its way arrives
    for target in targets:
        assert target.cpu().numpy().tobytes() == content


def test_quantized_weights_are_kept_and_come_back(tmp_path: Path) -> None:
    kept = model()
    tensors = {name: tensor.to(DEVICE) for name, tensor in kept.weights.tensors.items()}
    layer = Fp8Linear.of(PlainLinear(torch.randn(32, 16, dtype=torch.bfloat16, device=DEVICE), None))
    cache = QuantizedCache(Cache(tmp_path), "key", device=DEVICE, dtype=torch.bfloat16)
    cache.put(QuantizedModel(SPEC, Weights(tensors, {"layers.0.gate_up": layer}), outcome(), ()))
    found = cache.find()
    assert isinstance(found, QuantizedModel)
    for name, tensor in tensors.items():
        assert found.weights.tensors[name].device == DEVICE
        assert torch.equal(found.weights.tensors[name].cpu(), tensor.cpu())
    for kind, tensor in found.weights.linears["layers.0.gate_up"].tensors.items():
        same(tensor.cpu(), layer.tensors[kind].cpu())


@pytest.mark.parametrize("family", ["bert", "mpnet", "nomic_bert"])
def test_fused_weights_are_those_on_the_cpu(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    there = flattened(source_of(folder, dtype=torch.bfloat16, device=DEVICE).weights())
    assert all(tensor.device == DEVICE for tensor in there.values())
    here = flattened(source_of(folder, dtype=torch.bfloat16).weights())
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name].cpu()) for name in here)
