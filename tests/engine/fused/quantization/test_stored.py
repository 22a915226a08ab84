"""Folders whose weights are stored as FP8 run as the model that the stored numbers mean."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.fused.checkpoint import DequantizedCheckpoint, SafetensorsCheckpoint
from engine.model import quantization
from engine.selftest.fidelity import fidelity
from tests.engine.fused.model.models import CPU, load_fused, save
from tests.engine.tiny_models import arbitrary

BLOCK = 24  # so that the tiny weights of 32 and 48 have smaller blocks at their edges
SEQUENCES = arbitrary((5, 17, 1))
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
}
FINE_GRAINED: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
MODELOPT: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "FP8"}


def stored(weight: Tensor, method: str) -> tuple[str, Tensor, Tensor]:
    """The scale's name, FP8 values and scales."""
    match method:
        case "compressed-tensors":
            scales = weight.abs().amax(dim=1, keepdim=True) / 448
            return "weight_scale", weight / scales, scales
        case "modelopt":
            scales = weight.abs().max() / 448
            return "weight_scale", weight / scales, scales
        case _:
            rows, columns = (-(-size // BLOCK) for size in weight.shape)
            scales = torch.logspace(-2, -1, rows * columns).reshape(rows, columns)
            spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            return "weight_scale_inv", weight / spread[: weight.shape[0], : weight.shape[1]], scales


@pytest.mark.parametrize("config", [COMPRESSED, FINE_GRAINED, MODELOPT], ids=lambda config: config["quant_method"])
def test_a_stored_model_gives_the_rows_of_its_plain_form(config: dict[str, Any], tmp_path: Path) -> None:
    folder = save("qwen3", tmp_path / "model")
    before = load_fused(folder).token_rows(SEQUENCES)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scale_name, values, scales = stored(tensors[name], config["quant_method"])
        tensors[name] = values.clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors[f"{name.removesuffix('weight')}{scale_name}"] = scales
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": config}))

    found = quantization.read(folder)
    assert found is not None
    fused = load_fused(folder, DequantizedCheckpoint(SafetensorsCheckpoint(folder, CPU), found))
    rows = fused.token_rows(SEQUENCES)
    assert 0.99 < fidelity(rows, before).median_cosine < 0.999999
