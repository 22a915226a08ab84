"""Which ways of storing quantized weights are told apart, and what is said of the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model import quantization
from engine.model.quantization import BLOCK, CHANNEL, TENSOR, StoredFp8, StoredNvfp4
from engine.types import ModelError
from tests.engine.engines import refusal


def read(folder: Path, config: dict[str, Any] | None, hf_quant_config: dict[str, Any] | None = None) -> Any:
    (folder / "config.json").write_text(json.dumps({} if config is None else {"quantization_config": config}))
    if hf_quant_config is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(hf_quant_config))
    return quantization.read(folder)


def compressed(*groups: dict[str, Any], **others: Any) -> dict[str, Any]:
    numbered = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": numbered, **others}


def group(strategy: str | None, **others: Any) -> dict[str, Any]:
    return {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": strategy, **others}}


CASES: dict[str, tuple[dict[str, Any], frozenset[str], tuple[int, int] | None]] = {
    "fine-grained fp8": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        frozenset({BLOCK}),
        (128, 128),
    ),
    "fp8 per tensor": (
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        frozenset({TENSOR, CHANNEL}),
        None,
    ),
    "fbgemm": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, frozenset({CHANNEL}), None),
    "compressed, per channel": (compressed(group("channel")), frozenset({CHANNEL}), None),
    "compressed, per tensor": (compressed(group("tensor")), frozenset({TENSOR}), None),
    "compressed, not said": (compressed(group(None)), frozenset({TENSOR}), None),
    "compressed, blocks": (compressed(group("block", block_structure=[64, 128])), frozenset({BLOCK}), (64, 128)),
    "compressed, both": (
        compressed(group("channel"), group("block", block_structure=[128, 128]), format="mixed-precision"),
        frozenset({CHANNEL, BLOCK}),
        (128, 128),
    ),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, frozenset({TENSOR}), None),
    "modelopt, no method": ({"quant_algo": "FP8"}, frozenset({TENSOR}), None),
    "modelopt, per channel": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        frozenset({CHANNEL}),
        None,
    ),
    "modelopt, blocks": ({"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}, frozenset({BLOCK}), (128, 128)),
}


@pytest.mark.parametrize("case", CASES)
def test_formats_are_told_apart(case: str, tmp_path: Path) -> None:
    config, granularities, block = CASES[case]
    stored = read(tmp_path, config)
    assert isinstance(stored, StoredFp8)
    assert (stored.granularities, stored.block) == (granularities, block)
    assert stored.method == config.get("quant_method", "modelopt")
    assert stored.method in stored.note


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        compressed(),
        compressed({"targets": ["Linear"], "weights": None}),
        {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"},
    ],
)
def test_plain_weights_are_plain(config: dict[str, Any] | None, tmp_path: Path) -> None:
    assert read(tmp_path, config) is None


@pytest.mark.parametrize("is_nested", [True, False], ids=["older", "newer"])
def test_a_file_of_modelopt_is_read_where_config_says_nothing(is_nested: bool, tmp_path: Path) -> None:
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    file = {"producer": {"name": "modelopt"}, **({"quantization": said} if is_nested else said)}
    assert read(tmp_path, None, file).method == "modelopt"
    assert quantization.beside(tmp_path)["quant_algo"] == "FP8"
    assert read(tmp_path, CASES["fbgemm"][0], file).method == "fbgemm_fp8"


@pytest.mark.parametrize("where", ["text_config", "compression_config"])
def test_other_places(where: str, tmp_path: Path) -> None:
    config = compressed(group("channel"))
    (tmp_path / "config.json").write_text(
        json.dumps({where: {"quantization_config": config} if where == "text_config" else config})
    )
    assert quantization.read(tmp_path) is not None


@pytest.mark.parametrize(
    ("config", "scale_names"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["a", "b"]}, ("weight_scale_inv", "weight_scale")),
        ({"quant_method": "fp8", "ignored_layers": ["a", "b"]}, ("weight_scale_inv", "weight_scale")),
        (compressed(group("tensor"), ignore=["a", "b"]), ("weight_scale",)),
        ({"quant_algo": "FP8", "ignore": ["a", "b"]}, ("weight_scale",)),
    ],
)
def test_names_of_scales_whatever_modules_are_ignored(
    config: dict[str, Any], scale_names: tuple[str, ...], tmp_path: Path
) -> None:
    stored = read(tmp_path, config)
    assert stored.scale_names == scale_names


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}, "gptq"),
        ({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2", "desc_act": True}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "torchao"}, "torchao"),
        ({"bits": 4}, "unnamed"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fp8 e5m2"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt as NVFP4, which only the tensorrt-llm engine"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "modelopt NVFP4_AWQ"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "modelopt MIXED_PRECISION"),
        (compressed(group("channel"), format="pack-quantized"), "compressed-tensors pack-quantized"),
        (compressed({**group("tensor_group"), "format": "nvfp4-pack-quantized"}), "compressed-tensors as NVFP4, which"),
        (
            compressed({**group("tensor_group"), "format": "nvfp4-pack-quantized"}, group("channel")),
            "compressed-tensors nvfp4-pack-quantized",
        ),
        (compressed(group("channel", type="int")), "compressed-tensors int of 8 bits"),
        (compressed(group("channel", num_bits=4)), "compressed-tensors float of 4 bits"),
        (compressed(group("group", group_size=32)), "scales per group"),
        (compressed(group(None, group_size=32)), "scales per group"),
        (compressed(group("channel"), transform_config={"config_groups": {"u": {}}}), "transforms"),
        (compressed(group("channel"), sparsity_config={"format": "sparse-24-bitmask"}), "sparse"),
        (compressed(group("block", block_structure=[1, 128]), group("block", block_structure=[128, 128])), "several"),
        ({"quant_method": "x" * 500 + "\ny"}, "xxxx"),
    ],
)
def test_what_cannot_be_read_is_named(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    message = refusal(read, tmp_path, config)
    assert "stored quantized by" in message
    assert named in message
    assert len(message) < 250


NVFP4_GROUP = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
        {"quant_algo": "NVFP4"},
        compressed({"weights": NVFP4_GROUP}, format="nvfp4-pack-quantized"),
        compressed({"weights": NVFP4_GROUP, "format": "nvfp4-pack-quantized"}),
    ],
)
def test_nvfp4_is_described_for_the_one_engine_that_reads_it(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tensorrt-llm engine"):
        read(tmp_path, config)
    stored = quantization.describe(tmp_path)
    assert stored == StoredNvfp4(method=config.get("quant_method", "modelopt"))
    assert stored is not None
    assert stored.note == f"the weights are stored as NVFP4 ({stored.method})"
    with pytest.raises(ModelError, match="take the model's plain weights"):
        quantization.check(tmp_path, reads_fp8=True)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ([1], "quantization_config"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [True, 128]}, "weight_block_size"),
        (compressed(group("block")), "block_structure"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": 1}}, "config_groups"),
        (compressed({"weights": 3}), "weights"),
    ],
)
def test_malformed_files_are_said_to_be(config: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"'{named}' in the model's files"):
        read(tmp_path, config)
