"""Tensors that the library would look for in vain, or read as something else, are named."""

from pathlib import Path
from typing import Any

import pytest

from engine.tensorrt_llm.planning.checkpoint import PLAIN, classify
from engine.tensorrt_llm.planning.quantization import BLOCKS
from tests.engine.tensorrt_llm.header_models import HIDDEN, plain, write_headers
from tests.engine.tensorrt_llm.quantized_models import ACCEPTED, modelopt, quantized, refused, write

_Q = "model.layers.0.self_attn.q_proj"
_O = "model.layers.0.self_attn.o_proj"


@pytest.mark.holds("TensorRT-LLM")
@pytest.mark.parametrize(
    ("case", "changes", "named"),
    [
        ("modelopt", {f"{_O}.weight_scale": None}, "looks for the tensor 'layers.0.self_attn.o_proj.weight_scale'"),
        ("modelopt", {f"{_O}.weight_scale": ("F32", (HIDDEN, 1))}, "to be [] or [1], and it is [256, 1]"),
        ("modelopt", {f"{_O}.weight_scale": ("F8_E8M0", ())}, "it is F8_E8M0"),
        ("modelopt", {f"{_O}.weight": ("F8_E5M2", (HIDDEN, HIDDEN))}, "as F8_E4M3, and it is F8_E5M2"),
        ("modelopt", {f"{_O}.weight": ("F8_E4M3", (HIDDEN, 1, HIDDEN))}, "to be [N, K]"),
        ("modelopt", {f"{_Q}.input_scale": None}, "only some of them have an input_scale"),
        ("modelopt", {f"{_Q}.weight": ("BF16", (HIDDEN, HIDDEN))}, "only some of them are quantized"),
        ("modelopt", {f"{_Q}.weight": None}, "looks for the tensor 'layers.0.self_attn.q_proj.weight'"),
        ("modelopt", {"model.norm.weight": ("F8_E4M3", (HIDDEN,))}, "needs plain numbers in the tensor 'norm.weight'"),
        ("modelopt", {"model.embed_tokens.weight": ("F8_E4M3", (100, HIDDEN))}, "tensor 'embed_tokens.weight'"),
        ("modelopt", {f"{_Q}.bias": ("F8_E4M3", (HIDDEN,))}, "self_attn.q_proj.bias"),
        ("blocks", {f"{_O}.weight_scale_inv": ("F32", (4, 4))}, "to be [2, 2] or [2, 1, 2, 1], and it is [4, 4]"),
        ("blocks", {f"{_O}.weight": ("F8_E4M3", (192, HIDDEN))}, "multiples of 128 for FP8_BLOCK_SCALES"),
        (
            "blocks",
            {f"{_Q}.weight_scale_inv": None, f"{_Q}.weight_scale": ("F32", (2, 2))},
            "the names of their scales differ",
        ),
        ("compressed-tensors, rows", {f"{_O}.weight_scale": ("F32", ())}, "to be [256] or [256, 1], and it is []"),
        ("compressed-tensors, rows", {f"{_O}.weight_scale_inv": ("F32", (256, 1))}, "does not expect"),
        ("modelopt, NVFP4", {f"{_O}.input_scale": None}, "needs static scales of inputs for NVFP4"),
        ("modelopt, NVFP4", {f"{_O}.weight_scale_2": None}, "looks for the tensor"),
        ("modelopt, NVFP4", {f"{_O}.weight_scale": ("F8_E4M3", (256, 8))}, "to be [256, 16], and it is [256, 8]"),
        ("modelopt, NVFP4", {f"{_O}.weight_scale": ("U8", (256, 16))}, "as F8_E4M3, and it is U8"),
    ],
)
def test_foreign_scales_and_tensors_are_named(
    case: str, changes: dict[str, tuple[str, tuple[int, ...]] | None], named: str, tmp_path: Path
) -> None:
    algorithm, scale, inline, beside = ACCEPTED[case]
    tensors: dict[str, Any] = {**quantized(algorithm, scale=scale), **changes}
    message = refused(write(tmp_path, {name: one for name, one in tensors.items() if one}, inline, beside))
    assert named in message
    assert message.startswith("the tensorrt-llm engine ")


def test_a_block_grid_may_have_modelopts_four_dimensions(tmp_path: Path) -> None:
    tensors = quantized(BLOCKS)
    tensors[f"{_O}.weight_scale"] = ("F32", (2, 1, 2, 1))
    assert classify(write(tmp_path, tensors, None, modelopt("fp8_pb_wo"))).algorithm == BLOCKS


def test_every_file_of_the_folder_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path, plain())
    write_headers(tmp_path / "consolidated.safetensors", plain())
    write_headers(tmp_path / "other.safetensors", {"linear.weight": ("F32", (1, HIDDEN))})
    assert classify(folder).algorithm == PLAIN
    write_headers(tmp_path / "older.safetensors", {"model.norm.weight": ("F32", (HIDDEN,))})
    assert "two of them have the tensor 'norm.weight'" in refused(folder)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 16, (4).to_bytes(8, "little") + b"[12]"])
def test_damaged_files_are_said_to_be(damage: bytes, tmp_path: Path) -> None:
    folder = write(tmp_path, plain())
    (tmp_path / "model.safetensors").write_bytes(damage)
    assert "is not a safetensors file" in refused(folder)
