"""Weights that are not those of config.json are refused by their names, from the files' headers, before any is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from engine.model import model_folder
from engine.transformers import loading
from engine.transformers.loading import load_model
from tests.engine import engines, folder_files
from tests.engine.tiny_models import HIDDEN_SIZE, save

Tensors = dict[str, Tensor]
QUERY = "encoder.layer.1.attention.self.query.weight"
BIAS = "encoder.layer.1.output.dense.bias"
INSIDE = "encoder.layer.0.attention.self.distance_embedding.weight"

# What is changed -> the refusal, in which FILE stands for the file and FOLDER for its folder.
CHANGES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "shape": (
        lambda tensors: {**tensors, QUERY: torch.zeros(HIDDEN_SIZE, 5)},
        f"the weight '{QUERY}' in FILE has the shape [32, 5], and config.json asks for [32, 32]; check config.json",
    ),
    "missing": (
        lambda tensors: {name: tensor for name, tensor in tensors.items() if name != QUERY},
        f"the weights in FOLDER are not those of the architecture 'bert': {QUERY} is missing; check config.json",
    ),
    "too many": (
        lambda tensors: {**tensors, INSIDE: torch.zeros(3, 2)},
        f"the weight '{INSIDE}' in FILE: 'bert' with this config.json has none of that name",
    ),
    "integers": (
        lambda tensors: {**tensors, BIAS: tensors[BIAS].to(torch.int8)},
        f"the weight '{BIAS}' in FILE is stored as I8, and nothing describes its scale; take the model's plain weights",
    ),
    "float8": (
        lambda tensors: {**tensors, BIAS: tensors[BIAS].to(torch.float8_e4m3fn)},
        f"the tensor '{BIAS}' in FILE is stored as F8_E4M3, but the model's files do not describe the scales",
    ),
    "twice": (
        lambda tensors: {**tensors, f"bert.{BIAS}": tensors[BIAS].clone()},
        f"the weights 'bert.{BIAS}' in FILE and '{BIAS}' in FILE are both read as '{BIAS}'; leave out one of them",
    ),
    "prefixed": (
        lambda tensors: {f"bert.{name}": tensor[..., :5] for name, tensor in tensors.items()},
        "the weight 'bert.embeddings.LayerNorm.bias' in FILE has the shape [5], and config.json asks for [32]",
    ),
}


def change(folder: Path, make: Callable[[Tensors], Tensors]) -> Path:
    """The file that it changed."""
    file = folder / "model.safetensors"
    made = {name: tensor.contiguous() for name, tensor in make(load_file(file)).items()}
    save_file(made, file, metadata={"format": "pt"})
    return file


def refusal(folder: Path) -> str:
    return engines.refusal(lambda: load_model(model_folder.read(folder), dtype=torch.float32))


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may read weights."""

    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("the weights were read")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", read)


@pytest.mark.holds("What a model is for")
@pytest.mark.parametrize("changed", CHANGES)
def test_other_weights_are_refused_before_any_is_read(changed: str, tiny: Path, unread: None) -> None:
    make, words = CHANGES[changed]
    file = change(tiny, make)
    assert words.replace("FILE", str(file)).replace("FOLDER", str(tiny)) in refusal(tiny)


def test_the_shard_is_named(tiny: Path, unread: None) -> None:
    tensors = load_file(tiny / "model.safetensors")
    (tiny / "model.safetensors").unlink()
    tensors[QUERY] = torch.zeros(3)
    places = {name: "2.safetensors" if name == QUERY else "1.safetensors" for name in tensors}
    for shard in ("1.safetensors", "2.safetensors"):
        save_file({name: tensors[name] for name in tensors if places[name] == shard}, tiny / shard)
    (tiny / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert f"'{QUERY}' in {tiny / '2.safetensors'} has the shape [3]" in refusal(tiny)


@pytest.mark.parametrize(
    ("others", "fields", "words"),
    [
        (
            "others.safetensors",
            {"transformers_weights": "others.safetensors"},
            "'transformers_weights' in config.json is 'others.safetensors', and weights are read from model.safet",
        ),
        ("shard-00000-model-00001-of-00001.safetensors", {}, "is of a distributed checkpoint, which is not read"),
    ],
)
def test_no_other_files_are_read(others: str, fields: dict[str, Any], words: str, tiny: Path) -> None:
    """transformers would take them, and the other engines model.safetensors."""
    folder = model_folder.read(tiny)
    folder_files.change(tiny / "config.json", **fields)
    save_file({BIAS: torch.zeros(HIDDEN_SIZE)}, tiny / others)
    assert words in refusal(tiny)
    if fields:
        load_model(folder, dtype=torch.float32)  # as where the key is trusted: it is passed over


@pytest.mark.parametrize("changed", ["shape", "missing", "too many"])
def test_what_headers_do_not_tell_is_told_by_the_loaded_model(
    changed: str, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")

    make, words = CHANGES[changed]
    monkeypatch.setattr(loading, "_read", fail)
    load_model(model_folder.read(tiny), dtype=torch.float32)
    change(tiny, make)
    assert words.replace("FILE", str(tiny)).replace("FOLDER", str(tiny)) in refusal(tiny)


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """A model whose experts transformers joins: two tensors of each become a part of one."""
    sizes = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    folder = save("qwen3", tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    del settings["model_type"]
    config = AutoConfig.for_model("qwen3_moe", **settings, **sizes)
    AutoModel.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def test_experts_are_loaded(experts: Path) -> None:
    load_model(model_folder.read(experts), dtype=torch.float32)


def test_a_weight_that_can_not_be_converted_is_named(experts: Path, unread: None) -> None:
    name = "layers.1.mlp.experts.1.up_proj.weight"
    file = change(experts, lambda tensors: {**tensors, name: torch.zeros(3, HIDDEN_SIZE)})
    message = refusal(experts)
    assert message.startswith(
        f"transformers can't make the weight 'layers.1.mlp.experts.gate_up_proj' of '{name}' in {file} of the shape "
        "[3, 32], and 3 others: "
    )
    assert "stack expects each tensor to be equal size" in message
    assert message.endswith("; check config.json, or fetch the model's files again")


def test_a_weight_that_is_converted_to_another_shape_is_named(experts: Path, unread: None) -> None:
    names = [f"layers.1.mlp.experts.{number}.down_proj.weight" for number in range(2)]
    file = change(experts, lambda tensors: {**tensors, **{name: torch.zeros(HIDDEN_SIZE, 3) for name in names}})
    assert (
        f"the weight 'layers.1.mlp.experts.down_proj', made of '{names[0]}' in {file} of the shape [32, 3], and 1 "
        "others, has the shape [2, 32, 3], and config.json asks for [2, 32, 16]"
    ) in refusal(experts)
