"""What can't be quantized, in one line each; and what config.json says of what was."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from engine.tensorrt_llm.quantize.plan import plan
from tests.engine import engines
from tests.engine.folder_files import change, write
from tests.engine.tensorrt_llm.quantize.models import wide


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wide(tmp_path_factory.mktemp("model") / "qwen3", num_hidden_layers=1)


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model, tmp_path / "model")


def refusal(folder: Path) -> str:
    return engines.refusal(lambda: plan(folder))


def test_the_configuration_is_one_that_transformers_reads(folder: Path) -> None:
    (folder / "config.json").write_text(plan(folder).written["config.json"])

    config = AutoConfig.from_pretrained(folder)

    assert (config.model_type, config.hidden_size) == ("qwen3", 128)
    names = config.quantization_config.pop("modules_to_not_convert")
    assert config.quantization_config == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    assert {"lm_head", "embed_tokens", "score", "classifier"} <= set(names)


def test_what_is_quantized_already_is_refused(folder: Path) -> None:
    change(folder / "config.json", quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert "stored quantized already" in refusal(folder)
    change(folder / "config.json", quantization_config={"quant_method": "gptq"})
    assert "quantized by gptq" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_numbers_that_are_not_plain_are_refused(dtype: torch.dtype, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.0.mlp.up_proj.weight"] = tensors["layers.0.mlp.up_proj.weight"].to(dtype)
    save_file(tensors, folder / "model.safetensors")
    said = refusal(folder)
    assert "'layers.0.mlp.up_proj.weight'" in said
    assert "is stored as" in said


def test_scales_that_no_file_tells_of_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["layers.0.mlp.up_proj.weight_scale_inv"] = torch.ones(2, 1)
    save_file(tensors, folder / "model.safetensors")
    assert "scales already" in refusal(folder)


def test_pickled_weights_name_the_command_that_converts_them(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "lacks 'model.safetensors'" in refusal(folder)
    assert "embedline convert" in refusal(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "2_Dense/model.safetensors", "/etc/passwd", "lacking"])
def test_shards_lie_beside_their_index(name: str, folder: Path) -> None:
    shutil.copytree(folder, folder / "2_Dense")
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    write(folder / "model.safetensors.index.json", {"weight_map": {"a": name}})
    assert "lacks" in refusal(folder)


def test_a_file_that_is_cut_short_is_refused(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])
    assert "is not a safetensors file" in refusal(folder)


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    write(folder / "model.safetensors.index.json", {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})
    assert "a tensor of the same name" in refusal(folder)


def test_layers_without_whole_blocks_and_those_that_are_none_are_refused(tmp_path: Path) -> None:
    small = wide(tmp_path / "small", hidden_size=64, intermediate_size=96, num_key_value_heads=2, head_dim=16)
    assert "multiples of 128" in refusal(small)
    assert refusal(wide(tmp_path / "gpt2", "gpt2", n_embd=128)).startswith("the layers of gpt2")
