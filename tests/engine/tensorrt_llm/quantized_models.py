"""Model folders with quantized weights, as far as headers and JSON files tell, in each way that the library reads."""

import json
from pathlib import Path
from typing import Any

from engine.model.model_folder import ModelFolder
from engine.tensorrt_llm.planning.checkpoint import classify
from engine.tensorrt_llm.planning.quantization import BLOCKS, FP8, NVFP4, ROWS
from tests.engine import engines
from tests.engine.tensorrt_llm.header_models import LINEARS, Headers, layers, plain, write_model

BLOCKWISE = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def quantized(algorithm: str, *, but: str = "", prefix: str = "model.", scale: str = "weight_scale") -> Headers:
    """A backbone whose linear layers are, except those whose names hold `but`."""
    found = plain()
    for layer in layers():
        for linear, (rows, columns) in LINEARS.items():
            module = f"{layer}.{linear}"
            if but and but in module:
                continue
            found[f"{module}.weight"] = ("F8_E4M3", (rows, columns))
            if algorithm == FP8:
                found |= {f"{module}.{scale}": ("F32", ()), f"{module}.input_scale": ("F32", ())}
            elif algorithm == ROWS:
                found[f"{module}.{scale}"] = ("BF16", (rows, 1))
            elif algorithm == BLOCKS:
                found[f"{module}.{scale}"] = ("F32", (rows // 128, columns // 128))
            else:
                found |= {
                    f"{module}.weight": ("U8", (rows, columns // 2)),
                    f"{module}.{scale}": ("F8_E4M3", (rows, columns // 16)),
                    f"{module}.weight_scale_2": ("F32", ()),
                    f"{module}.input_scale": ("F32", ()),
                }
    return {prefix + name: tensor for name, tensor in found.items()}


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, **others: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **others,
    }


def write(folder: Path, tensors: Headers, inline: Any = None, beside: Any = None, **config: Any) -> ModelFolder:
    model = write_model(folder, tensors, quantization_config=inline, **config)
    if beside is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(beside))
    return model


def modelopt(algorithm: str, **others: Any) -> dict[str, Any]:
    return {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm, **others}}


def refused(folder: ModelFolder) -> str:
    message = engines.refusal(lambda: classify(folder))
    assert "plain weights" in message or "safetensors" in message or "looks for" in message
    assert len(message) < 400
    return message


ROWWISE = compressed({"strategy": "channel"}, {"strategy": "token", "dynamic": True})
IN_BLOCKS = compressed({"strategy": "block", "block_structure": [128, 128]}, {"strategy": "group", "group_size": 128})
# As in the tests of the library's parsers; weights' name of the scale, config.json's part, hf_quant_config.json
ACCEPTED: dict[str, tuple[str, str, Any, Any]] = {
    "modelopt": (FP8, "weight_scale", None, modelopt("FP8", exclude_modules=["lm_head"])),
    "modelopt, flat": (
        FP8,
        "weight_scale",
        None,
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["score"]},
    ),
    "modelopt, in both": (
        FP8,
        "weight_scale",
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": []},
        modelopt("FP8"),
    ),
    "modelopt, blocks": (BLOCKS, "weight_scale", None, modelopt("fp8_pb_wo")),
    "modelopt, rows": (ROWS, "weight_scale", None, modelopt("FP8_PER_CHANNEL_PER_TOKEN")),
    "modelopt, NVFP4": (NVFP4, "weight_scale", None, modelopt("NVFP4", group_size=16, exclude_modules=["lm_head"])),
    "blocks": (BLOCKS, "weight_scale_inv", BLOCKWISE, None),
    "compressed-tensors, rows": (ROWS, "weight_scale", ROWWISE, None),
    "compressed-tensors, blocks": (BLOCKS, "weight_scale", IN_BLOCKS, None),
    "compressed-tensors, a regular expression": (ROWS, "weight_scale", {**ROWWISE, "ignore": ["re:.*lm_head$"]}, None),
}
