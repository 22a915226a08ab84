"""What is written is what TensorRT-LLM reads as FP8_BLOCK_SCALES, by the rules of its sources; the library never runs
here, so these are written down once more: how it joins matrices and scales, and which modules a list of names excludes.
"""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.engine.tensorrt_llm.quantize.models import WIDE, quantized
from tests.engine.tiny_models import save_whole

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SHAPES: dict[str, Any] = {**WIDE, "num_hidden_layers": 2, "vocab_size": 256}
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# The library's own names; "model." stands before those of the layers, whatever the checkpoint has.
LAYER = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def candidates(module: str) -> list[str]:
    """What the exclusion of a joined matrix goes by: its own name, and those of its parts in the checkpoint."""
    *path, own = module.split(".")
    return [module, *(".".join((*path, part)) for part in JOINED.get(own, ()))]


def is_excluded(module: str, names: list[str]) -> bool:
    """By whole names in older versions; newer ones ask for each of a module's ancestors too, so this is the wider."""
    parts = [name.split(".") for name in candidates(module)]
    above = {".".join(each[:length]) for each in parts for length in range(1, len(each) + 1)}
    return any(fnmatchcase(name, pattern) for name in above for pattern in names)


@pytest.mark.parametrize("purpose", [AutoModel, AutoModelForSequenceClassification, AutoModelForCausalLM])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_layer_is_excluded_and_heads_are(family: str, purpose: Any, tmp_path: Path) -> None:
    out = quantized(save_whole(family, tmp_path / "model", purpose, **SHAPES), tmp_path / "out").folder

    quantization = json.loads((out / "config.json").read_text())["quantization_config"]
    assert quantization["quant_method"] == "fp8"
    assert quantization["weight_block_size"] == [128, 128]
    assert quantization["activation_scheme"] == "dynamic"
    names = quantization["modules_to_not_convert"]
    assert not any(is_excluded(f"model.layers.{layer}.{module}", names) for layer in range(2) for module in LAYER)
    assert is_excluded("lm_head", names)
    assert is_excluded("score", names)


def test_what_says_how_the_plain_weights_are_stored_is_not_copied(tmp_path: Path) -> None:
    """It is asked before config.json, and a copy would pass for plain."""
    model = save_whole("qwen3", tmp_path / "model", AutoModel, **SHAPES)
    (model / "hf_quant_config.json").write_text('{"quantization": {"kv_cache_quant_algo": "FP8"}}')

    out = quantized(model, tmp_path / "out").folder

    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
