"""Folders whose weights are FP8, told in each way there is or in none: read by the fused engine, refused by others."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import registry
from engine.model import quantization
from engine.types import Engine, EngineError, ModelError, OutputKind
from tests.engine import engines, tiny_models
from tests.engine.engines import load_options

pytestmark = pytest.mark.holds("Engines on a GPU")

SEQUENCES = tiny_models.arbitrary([5, 20])
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}},
}
# Who tells it -> what is added to which file
TOLD: dict[str, tuple[str, dict[str, Any]]] = {
    "quantization_config": ("config.json", {"quantization_config": {"quant_method": "fp8"}}),
    "compression_config": ("config.json", {"compression_config": COMPRESSED}),
    "hf_quant_config.json": ("hf_quant_config.json", MODELOPT),
}
OTHERS = ("transformers", "openvino")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("plain"))


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    """The same with linear layers of FP8 and scales, of which no JSON file knows."""
    copied = tmp_path / "fp8"
    shutil.copytree(plain, copied)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if name.endswith("proj.weight"):
            scale = tensor.abs().max() / 448
            tensors |= {name: (tensor / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale.float()}
        else:
            tensors[name] = tensor
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    return copied


def tell(folder: Path, who: str) -> None:
    file, fields = TOLD[who]
    known = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps({**known, **fields}))


def load(engine: str, folder: Path) -> Engine:
    options = load_options(folder, pooling="mean", max_num_tokens=256)
    return registry.load(engine, name="m", reason="", options=options)


def refusal(engine: str, folder: Path) -> str:
    return engines.refusal(lambda: load(engine, folder))


@pytest.mark.parametrize("engine", OTHERS)
@pytest.mark.parametrize("who", TOLD)
def test_refused_by_those_who_would_take_fp8_for_the_weights(engine: str, who: str, folder: Path) -> None:
    tell(folder, who)
    message = refusal(engine, folder)
    assert message.startswith("the weights are stored as FP8 (")
    assert "only the fused engine reads them: on a GPU, or with --engine fused --devices cpu for checks" in message


def test_auto_on_a_cpu_tells_it_too(folder: Path) -> None:
    tell(folder, "hf_quant_config.json")
    message = refusal("auto", folder)
    assert "openvino: the weights are stored as FP8 (modelopt" in message
    assert "transformers: the weights are stored as FP8 (modelopt" in message


@pytest.mark.parametrize("engine", [*OTHERS, "fused"])
def test_fp8_without_a_word_is_nobodys(engine: str, folder: Path) -> None:
    message = refusal(engine, folder)
    assert "proj.weight' in " in message
    assert " is stored as " in message
    assert "take the model's plain weights" in message


def test_the_fused_engine_reads_it(folder: Path, plain: Path) -> None:
    tell(folder, "hf_quant_config.json")
    engine = load("fused", folder)
    engine.submit(tiny_models.batch(SEQUENCES))
    _, results = engine.collect()
    engine.close()
    assert not isinstance(results, EngineError)
    rows, expected = results[OutputKind.POOLED].values, tiny_models.Reference(plain).pooled(SEQUENCES, "mean")
    cosines = (rows * expected).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.99


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    tensors = {"ids": torch.arange(3), "a.weight": torch.ones(2, 2, dtype=torch.int8)}
    save_file({"ids": tensors["ids"]}, tmp_path / "model.safetensors")
    assert quantization.check(tmp_path, reads_fp8=False) is None
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"^the tensor 'a\.weight' in .* is stored as I8, but the model"):
        quantization.check(tmp_path, reads_fp8=True)


@pytest.mark.parametrize("name", ["a.qweight", "a.weight_packed"])
def test_packed_weights_that_no_file_describes(name: str, tmp_path: Path) -> None:
    """As older versions of AutoGPTQ and AutoAWQ leave them, whose description is in a file of its own."""
    packed = torch.zeros(2, 16, dtype=torch.int32)  # eight numbers of 4 bits each
    save_file({name: packed, "a.scales": torch.ones(1, 16)}, tmp_path / "model.safetensors")
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "group_size": 128, "desc_act": false}')
    with pytest.raises(ModelError, match=rf"^the tensor '{name}' in .* is stored as I32, but the model"):
        quantization.check(tmp_path, reads_fp8=True)
