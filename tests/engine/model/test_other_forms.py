"""Repositories of quantized weights, and of weights for other programs: one line, which names the plain model where the
card does."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model import model_folder
from engine.store import model_source
from tests.engine.engines import refusal
from tests.engine.folder_files import change, write
from tests.engine.model.detection import shapes

QUANTIZED = "; its card (README.md) names the model that was quantized: Qwen/Qwen3-Embedding-0.6B"
CARDS = {
    "quantized": ("base_model: Qwen/Qwen3-Embedding-0.6B\nbase_model_relation: quantized", QUANTIZED),
    "a list": ("base_model_relation: quantized\nbase_model:\n- Qwen/Qwen3-Embedding-0.6B\n", QUANTIZED),
    "in quotes": ("base_model: ['Qwen/Qwen3-Embedding-0.6B']\nbase_model_relation: \"quantized\"", QUANTIZED),
    "no relation": ("base_model: BAAI/bge-m3", "; its card (README.md) names what it was made of: BAAI/bge-m3"),
    "no name": ("base_model: none of your business", ""),
    "none": ("license: mit", ""),
}
OTHERS = {
    "GGUF": ("model-Q4_K_M.gguf",),
    "ONNX": ("onnx/model.onnx", "onnx/model.onnx_data"),
    "OpenVINO's form": ("openvino_model.xml", "openvino_model.bin"),
    "MLX's form": ("weights.npz",),
    "GGUF and ONNX": ("a.gguf", "model_quantized.onnx"),
}


def card(folder: Path, front: str) -> None:
    (folder / "README.md").write_text(f"---\n{front}\n---\n# A model\n")


def other_form(folder: Path, form: str, *, is_bare: bool = False) -> None:
    """is_bare: without config.json."""
    shapes.embedding(folder)
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    for name in OTHERS[form]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"GGUF")
    if is_bare:
        for file in folder.glob("*.json"):
            file.unlink()


@pytest.mark.parametrize("form", OTHERS)
@pytest.mark.parametrize("is_bare", [False, True])
def test_weights_for_other_programs(tmp_path: Path, form: str, is_bare: bool) -> None:
    other_form(tmp_path, form, is_bare=is_bare)
    card(tmp_path, CARDS["quantized"][0])
    line = f"{tmp_path} has its weights as {form}, and only *.safetensors are read{QUANTIZED}"
    assert refusal(model_folder.read, tmp_path) == line
    assert refusal(model_source.find_here, str(tmp_path)) == line


@pytest.mark.parametrize("name", CARDS)
def test_what_the_card_names(tmp_path: Path, name: str) -> None:
    other_form(tmp_path, "GGUF")
    front, named = CARDS[name]
    card(tmp_path, front)
    assert refusal(model_folder.read, tmp_path).endswith(f"only *.safetensors are read{named}")


@pytest.mark.parametrize("kept", ["model.safetensors", "pytorch_model.bin"])
def test_such_files_beside_weights_that_are_read(tmp_path: Path, kept: str) -> None:
    shapes.embedding(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    if kept == "pytorch_model.bin":
        (tmp_path / "model.safetensors").rename(tmp_path / kept)
        assert "has no model.safetensors" in refusal(model_folder.read, tmp_path)
    else:
        assert model_folder.read(tmp_path).dimensions == 4


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "bitsandbytes"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "pack-quantized",
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group"}}},
                }
            },
            "compressed-tensors pack-quantized",
        ),
        ({"quantization": {"group_size": 64, "bits": 4}}, "mlx"),
        (
            {key: {"group_size": 64, "bits": 4, "mode": "affine"} for key in ("quantization", "quantization_config")},
            "mlx",
        ),
    ],
)
def test_quantized_weights(tmp_path: Path, config: dict[str, Any], method: str) -> None:
    shapes.embedding(tmp_path)
    change(tmp_path / "config.json", **config)
    card(tmp_path, CARDS["quantized"][0])
    line = refusal(model_folder.read, tmp_path)
    assert line.startswith(f"the weights are stored quantized by {method}, which can't be read; take the model's plain")
    assert line.endswith(QUANTIZED)


def test_a_snapshot_of_which_the_hub_listed_more(tmp_path: Path) -> None:
    """Of the repository's files, only those that engines read were fetched."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--Qwen3-Embedding-0.6B-GGUF"
    snapshot = repository / "snapshots" / commit
    write(snapshot / "config.json", {"model_type": "qwen3"})
    card(snapshot, CARDS["a list"][0])
    listing = {"format_version": 1, "files": ["README.md", "config.json", "Qwen3-Embedding-0.6B-Q8_0.gguf"]}
    (repository / "trees").mkdir()
    (repository / "trees" / f"{commit}.json").write_text(json.dumps(listing))
    line = refusal(model_source.find_here, str(snapshot))
    assert line == f"{snapshot} has its weights as GGUF, and only *.safetensors are read{QUANTIZED}"
