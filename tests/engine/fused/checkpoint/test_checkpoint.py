"""Tensors by a checkpoint's names, out of files; FP8 ones are read as plain ones by their scales."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.fused.checkpoint import DequantizedCheckpoint, SafetensorsCheckpoint
from engine.model.quantization import BLOCK, CHANNEL, TENSOR, StoredFp8
from engine.types import ModelError
from tests.engine.engines import refusal
from tests.engine.fused.model.models import CPU, Held

ONE = torch.arange(6, dtype=torch.float16).view(2, 3)
TWO = torch.arange(4, dtype=torch.bfloat16)


def sharded(folder: Path) -> Path:
    save_file({"one": ONE}, folder / "model-1.safetensors")
    save_file({"two": TWO}, folder / "model-2.safetensors")
    places = {"one": "model-1.safetensors", "two": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def test_one_file(tmp_path: Path) -> None:
    save_file({"one": ONE, "two": TWO}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path, CPU)
    assert checkpoint.names == {"one", "two"}
    assert checkpoint.read("one").dtype == torch.float16
    assert torch.equal(checkpoint.read("one"), ONE)
    assert torch.equal(checkpoint.read("two"), TWO)


def test_one_file_is_preferred_to_an_index(tmp_path: Path) -> None:
    save_file({"three": ONE}, sharded(tmp_path) / "model.safetensors")
    assert SafetensorsCheckpoint(tmp_path, CPU).names == {"three"}


def test_files_are_opened_when_they_are_read(tmp_path: Path) -> None:
    checkpoint = SafetensorsCheckpoint(sharded(tmp_path), CPU)
    (tmp_path / "model-2.safetensors").unlink()
    assert torch.equal(checkpoint.read("one"), ONE)
    with pytest.raises(ModelError, match=r"model-2\.safetensors can't be read as a safetensors file$"):
        checkpoint.read("two")


def test_a_tensor_that_nobody_has(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^the weights have no tensor 'three'$"):
        SafetensorsCheckpoint(sharded(tmp_path), CPU).read("three")


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    save_file({"a.LayerNorm.gamma": ONE, "a.LayerNorm.weight": ONE.clone()}, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"^the weights 'a\..* are both read as 'a\.LayerNorm\.weight'; leave out one$"
    ):
        SafetensorsCheckpoint(tmp_path, CPU)


def test_names_of_berts_first_days(tmp_path: Path) -> None:
    save_file({"a.LayerNorm.gamma": ONE, "a.LayerNorm.beta": TWO, "gamma": TWO.clone()}, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path, CPU)
    assert checkpoint.names == {"a.LayerNorm.weight", "a.LayerNorm.bias", "gamma"}
    assert torch.equal(checkpoint.read("a.LayerNorm.weight"), ONE)
    assert torch.equal(checkpoint.read("a.LayerNorm.bias"), TWO)


ROWS, COLUMNS = 200, 136  # the last blocks have 72 rows and 56 columns
BLOCK_SIZE = (128, 80)
NAME = "layers.0.q_proj.weight"


def stored(*granularities: str, scale_names: tuple[str, ...] = ("weight_scale",)) -> StoredFp8:
    block = BLOCK_SIZE if BLOCK in granularities else None
    return StoredFp8(method="fp8", granularities=frozenset(granularities), block=block, scale_names=scale_names)


def weight() -> Tensor:
    """Of rows and columns of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.logspace(-2, 2, ROWS)[:, None] * torch.logspace(0, 1, COLUMNS)
    return torch.randn(ROWS, COLUMNS, generator=generator) * sizes


def quantized(granularity: str) -> tuple[Tensor, Tensor, Tensor]:
    """FP8 values, scales and what they mean, made the slow way."""
    plain = weight()
    rows, columns = {TENSOR: (ROWS, COLUMNS), CHANNEL: (1, COLUMNS), BLOCK: BLOCK_SIZE}[granularity]
    grid = (-(-ROWS // rows), -(-COLUMNS // columns))
    values, meant, scales = torch.empty(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS), torch.empty(grid)
    for i in range(grid[0]):
        for j in range(grid[1]):
            block = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scales[i, j] = plain[block].abs().max() / 448
            values[block] = plain[block] / scales[i, j]
            meant[block] = values[block].to(torch.float8_e4m3fn).float() * scales[i, j]
    return values.to(torch.float8_e4m3fn), scales, meant


@pytest.mark.parametrize(
    ("granularity", "shape"),
    [
        (TENSOR, ()),
        (TENSOR, (1,)),
        (TENSOR, (1, 1)),
        (CHANNEL, (ROWS,)),
        (CHANNEL, (ROWS, 1)),
        (BLOCK, (2, 2)),
        (BLOCK, (2, 1, 2, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scales_are_applied(granularity: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values, scales, meant = quantized(granularity)
    tensors = {NAME: values, "layers.0.q_proj.weight_scale": scales.reshape(shape).to(dtype)}
    checkpoint = DequantizedCheckpoint(Held(tensors), stored(granularity))
    read, outline = checkpoint.read(NAME), checkpoint.on_meta(NAME)
    assert read.dtype == outline.dtype == torch.float32
    assert read.shape == outline.shape
    torch.testing.assert_close(read, meant, rtol=1e-6 if dtype == torch.float32 else 2**-8, atol=0)
    relative = ((read - weight()).norm() / weight().norm()).item()
    assert 0.01 < relative < 0.04  # what e4m3 loses


def test_powers_of_two_in_one_byte_are_scales() -> None:
    scales = torch.tensor([[2.0, 0.25], [1.0, 8.0]])
    values = torch.ones(ROWS, COLUMNS, dtype=torch.float8_e4m3fn)
    tensors = {NAME: values, "layers.0.q_proj.weight_scale": scales.to(torch.float8_e8m0fnu)}
    read = DequantizedCheckpoint(Held(tensors), stored(BLOCK)).read(NAME)
    assert read[0, 0] == 2
    assert read[0, -1] == 0.25
    assert read[-1, 0] == 1
    assert read[-1, -1] == 8


def test_the_name_of_a_scale_is_the_first_that_is_there() -> None:
    values, scales, meant = quantized(TENSOR)
    for kind in ("weight_scale_inv", "weight_scale"):
        tensors = {NAME: values, f"layers.0.q_proj.{kind}": scales}
        checkpoint = DequantizedCheckpoint(
            Held(tensors), stored(TENSOR, scale_names=("weight_scale_inv", "weight_scale"))
        )
        torch.testing.assert_close(checkpoint.read(NAME), meant)
        assert checkpoint.names == {NAME}


def test_scales_are_hidden_and_the_rest_goes_through() -> None:
    plain = {"norm.weight": torch.ones(3), "logit_scale": torch.ones(()), "layers.0.q_proj.bias": torch.ones(ROWS)}
    scales = ["weight_scale", "input_scale", "output_scale", "k_scale", "v_scale"]
    tensors = {**plain, **{f"layers.0.q_proj.{scale}": torch.ones(1) for scale in scales}}
    checkpoint = DequantizedCheckpoint(Held(tensors), stored(TENSOR))
    assert checkpoint.names == frozenset(plain)
    assert all(checkpoint.read(name) is tensor for name, tensor in plain.items())


VALUES = torch.ones(ROWS, COLUMNS, dtype=torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("tensors", "granularity", "words"),
    [
        ({NAME: VALUES}, TENSOR, "its scale is missing"),
        ({NAME: VALUES, "": torch.ones(2)}, TENSOR, "of shape [2] does not fit a weight of [200, 136]"),
        ({NAME: VALUES, "": torch.ones(ROWS)}, TENSOR, "does not fit"),
        ({NAME: VALUES, "": torch.ones(COLUMNS)}, CHANNEL, "does not fit"),
        ({NAME: VALUES, "": torch.ones(1, ROWS)}, CHANNEL, "does not fit"),
        ({NAME: VALUES, "": torch.ones(1)}, CHANNEL, "does not fit"),
        ({NAME: VALUES, "": torch.ones(2, 1)}, BLOCK, "does not fit"),
        ({NAME: VALUES, "": torch.ones(2, 2, 1, 1)}, BLOCK, "does not fit"),
        ({NAME: VALUES[0], "": torch.ones(ROWS)}, CHANNEL, "does not fit"),
        ({NAME: VALUES, "": torch.tensor(torch.nan)}, TENSOR, "not finite"),
        ({NAME: VALUES, "": torch.ones(1, dtype=torch.uint8)}, TENSOR, "not finite floating-point"),
        ({NAME: VALUES.bfloat16(), "": torch.ones(1)}, TENSOR, "which is not FP8"),
        ({NAME: VALUES.to(torch.int8), "": torch.ones(1)}, TENSOR, "which is not FP8"),
    ],
)
def test_what_does_not_fit_is_named(tensors: dict[str, Tensor], granularity: str, words: str) -> None:
    named = {name or "layers.0.q_proj.weight_scale": tensor for name, tensor in tensors.items()}
    checkpoint = DequantizedCheckpoint(Held(named), stored(granularity))
    # What is wrong with the numbers shows when they are read.
    for read in (checkpoint.read,) if words == "not finite" else (checkpoint.read, checkpoint.on_meta):
        message = refusal(read, NAME)
        assert words in message
        assert "layers.0.q_proj.weight" in message
        assert message.endswith(": no engine reads it; take the model's plain weights")
