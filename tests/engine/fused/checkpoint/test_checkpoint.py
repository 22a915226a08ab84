"""Tensors out of safetensors files, one or several, and out of modules."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from engine.fused.checkpoint import ModuleCheckpoint, SafetensorsCheckpoint
from engine.types import ModelError
from tests.engine.fused.model.models import CPU

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
    for checkpoint in (SafetensorsCheckpoint(sharded(tmp_path), CPU), ModuleCheckpoint(nn.Linear(2, 3))):
        with pytest.raises(ModelError, match=r"^the weights have no tensor 'three'$"):
            checkpoint.read("three")


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


def test_a_module() -> None:
    module = nn.Linear(2, 3)
    checkpoint = ModuleCheckpoint(module)
    assert checkpoint.names == {"weight", "bias"}
    assert torch.equal(checkpoint.read("weight"), module.weight)
    assert not checkpoint.read("weight").requires_grad
