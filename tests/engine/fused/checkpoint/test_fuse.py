"""Fused tensors out of checkpoints: places, dtypes, prefixes, and what is refused."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, BertConfig, PretrainedConfig

from engine.fused.adapters.adapter import Adapter, Recipe, Recipes, affine
from engine.fused.adapters.bert import common_spec
from engine.fused.model.forwards import Weights
from engine.fused.model.linear import PlainLinear
from engine.fused.model.spec import Spec
from engine.fused.weights import FusedWeights
from engine.types import ModelError
from tests.engine.engines import refusal
from tests.engine.fused.model.models import CPU, Held, save, source_of
from tests.engine.tiny_models import HIDDEN_SIZE, VOCAB_SIZE

Tensors = dict[str, Tensor]
QUERY = "encoder.layer.1.attention.self.query.weight"
WORDS = {"words": Recipe(("words",))}
BERT = common_spec(BertConfig(intermediate_size=96))
Derive = Callable[[PretrainedConfig, Mapping[str, Tensor], int], Tensors]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save("bert", tmp_path / "model")


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> Tensors:
    """The folder's tensors as they are from now on."""
    changed = change(load_file(folder / "model.safetensors"))
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return changed


def linear(weights: Weights, name: str) -> PlainLinear:
    found = weights.linears[name]
    assert isinstance(found, PlainLinear)
    return found


def flattened(weights: Weights) -> Tensors:
    return dict(weights.tensors) | {
        f"{name}.{kind}": tensor
        for name in weights.linears
        for kind, tensor in (("weight", linear(weights, name).weight), ("bias", linear(weights, name).bias))
        if tensor is not None
    }


def assert_same(one: Weights, other: Weights) -> None:
    ours, theirs = flattened(one), flattened(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(stored: torch.dtype, dtype: torch.dtype, folder: Path) -> None:
    tensors = rewrite(folder, lambda tensors: {name: tensor.to(stored) for name, tensor in tensors.items()})
    weights = source_of(folder, dtype=dtype).weights()
    assert torch.equal(weights.tensors["words"], tensors["embeddings.word_embeddings.weight"].to(dtype))
    up = linear(weights, "layers.0.gate_up")
    assert torch.equal(up.weight, tensors["encoder.layer.0.intermediate.dense.weight"].to(dtype))
    assert up.bias is not None
    assert up.bias.dtype == dtype
    norm = weights.tensors["layers.0.mlp_norm.weight"]
    assert norm.dtype == torch.float32
    assert torch.equal(norm, tensors["encoder.layer.0.output.LayerNorm.weight"].float())


def test_biases_by_distance_are_float32(tmp_path: Path) -> None:
    weights = source_of(save("mpnet", tmp_path / "model"), dtype=torch.bfloat16).weights()
    assert weights.tensors["relative_bias"].dtype == torch.float32
    assert weights.tensors["relative_bias"].shape == (4, 257)


@pytest.mark.parametrize(
    ("family", "prefix"),
    [
        *((family, family) for family in ("bert", "roberta", "electra", "distilbert", "mpnet", "albert")),
        *((family, "model") for family in ("llama", "gemma3_text", "modernbert")),
    ],
)
def test_the_prefix_of_a_larger_model(family: str, prefix: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    plain = source_of(folder).weights()
    rewrite(folder, lambda tensors: {f"{prefix}.{name}": tensor for name, tensor in tensors.items()})
    assert_same(source_of(folder).weights(), plain)


def test_several_files_give_the_same(folder: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(folder, dtype=torch.float32)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert_same(source_of(tmp_path / "shards").weights(), source_of(folder).weights())


def test_one_layer_is_read_anew(folder: Path) -> None:
    source = source_of(folder)
    weights = source.weights()
    for name in source.linear_names:
        again, before = source.linear(name), linear(weights, name)
        assert torch.equal(again.weight, before.weight)
        assert again.weight.data_ptr() != before.weight.data_ptr()
        assert again.bias is not None
        assert before.bias is not None
        assert torch.equal(again.bias, before.bias)


def test_what_is_read_can_be_changed(folder: Path) -> None:
    """None of our tensors is a view of the file."""
    source = source_of(folder)
    source.weights().tensors["words"].zero_()
    assert source.weights().tensors["words"].any()


def test_layers_that_share_their_weights_share_ours(tmp_path: Path) -> None:
    weights = source_of(save("albert", tmp_path / "model")).weights()
    assert linear(weights, "layers.0.qkv").weight is linear(weights, "layers.2.qkv").weight


@pytest.mark.parametrize(
    "name", [QUERY, "embeddings.token_type_embeddings.weight", "encoder.layer.2.output.dense.bias"]
)
def test_a_missing_tensor(name: str, folder: Path) -> None:
    rewrite(folder, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name})
    with pytest.raises(
        ModelError, match=f"^the weights have no tensor '{name}', which config.json asks for; --engine transformers may"
    ):
        source_of(folder)


def test_a_missing_tensor_of_a_larger_model(folder: Path) -> None:
    rewrite(folder, lambda tensors: {f"bert.{key}": tensor for key, tensor in tensors.items() if key != QUERY})
    with pytest.raises(
        ModelError, match=f"^the weights have no tensor 'bert.{QUERY}', which config.json asks for; --engine"
    ):
        source_of(folder)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (QUERY, (HIDDEN_SIZE, HIDDEN_SIZE + 1)),
        (QUERY, (HIDDEN_SIZE + 1, HIDDEN_SIZE)),
        ("embeddings.word_embeddings.weight", (VOCAB_SIZE - 1, HIDDEN_SIZE)),
        ("embeddings.position_embeddings.weight", (63, HIDDEN_SIZE)),
        ("embeddings.token_type_embeddings.weight", (3, HIDDEN_SIZE)),
        ("encoder.layer.0.output.LayerNorm.bias", (1,)),
        ("encoder.layer.1.output.dense.bias", (HIDDEN_SIZE, 1)),
    ],
)
def test_a_wrong_shape(name: str, shape: tuple[int, ...], folder: Path) -> None:
    rewrite(folder, lambda tensors: {**tensors, name: torch.zeros(shape)})
    message = refusal(source_of(folder).check)
    assert message.startswith(f"the tensor '{name}' in {folder / 'model.safetensors'}")
    assert re.search(" has the shape .*; config.json asks for ", message)


@pytest.mark.parametrize("tensor", [torch.zeros(HIDDEN_SIZE, dtype=torch.float8_e4m3fn), torch.zeros(())])
def test_what_is_not_plain_weights(tensor: Tensor, folder: Path) -> None:
    name = "encoder.layer.1.output.dense.bias"
    rewrite(folder, lambda tensors: {**tensors, name: tensor})
    with pytest.raises(ModelError, match=f"^the tensor '{name}' in .* is stored as .* only plain weights"):
        source_of(folder).check()


@pytest.mark.parametrize(("family", "name"), [("bert", "cls.predictions.bias"), ("qwen3", "score.weight")])
def test_unused_tensors_are_left_alone(family: str, name: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    plain = source_of(folder).weights()
    rewrite(folder, lambda tensors: {**tensors, name: torch.ones(3)})
    assert_same(source_of(folder).weights(), plain)


def layout_of(recipes: Recipes) -> Callable[[Spec], Recipes]:
    return lambda _: WORDS | recipes


def small(held: Tensors, *layouts: Recipes, derive: Derive | None = None) -> FusedWeights:
    """Words and a norm of two numbers, by these layouts."""
    spec = dataclasses.replace(BERT, hidden_size=2, vocab_size=3, layers=())
    held = {"words": torch.ones(3, 2), "scale.weight": torch.tensor([1.0, 2.0]), **held}
    adapter = Adapter(lambda _: spec, tuple(map(layout_of, layouts)), derive=derive)
    return FusedWeights(Held(held), adapter, PretrainedConfig(), dtype=torch.bfloat16, device=CPU, num_positions=7)


def test_what_is_added_is_added_in_float32() -> None:
    held = {"scale.weight": torch.tensor([1.0, 2**-9], dtype=torch.bfloat16)}
    weights = small(held, {"final_norm.weight": Recipe(("scale.weight",), plus=1.0)}).weights()
    assert weights.tensors["final_norm.weight"].tolist() == [2.0, 1 + 2**-9]


def test_one_bias_too_few_is_no_layout_without_biases() -> None:
    both = affine({"final_norm": ("scale",), "embedding_norm": ("scale",)})
    poorer = affine({"final_norm": ("scale",), "embedding_norm": ("scale",)}, has_bias=False)
    richer = both | {"embedding_norm.bias": Recipe(("lost.bias",))}
    with pytest.raises(
        ModelError, match=r"^the weights have no tensor 'lost\.bias', which config.json asks for; --engine"
    ):
        small({"scale.bias": torch.zeros(2)}, richer, poorer)
