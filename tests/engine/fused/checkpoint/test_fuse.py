"""Fused tensors out of checkpoints: places, dtypes, prefixes, and what is refused."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, BertConfig, PretrainedConfig

from engine.fused.adapters.adapter import Adapter, Recipe, Recipes, affine, in_layers
from engine.fused.adapters.bert import common_spec
from engine.fused.checkpoint import ModuleCheckpoint
from engine.fused.model.forwards import Weights
from engine.fused.model.linear import PlainLinear
from engine.fused.model.spec import LayerSpec, Spec
from engine.fused.weights import FusedWeights
from engine.types import ModelError
from tests.engine.fused.model.models import CPU, save, source_of
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


def test_queries_keys_and_values_are_joined(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    qkv = linear(source_of(folder).weights(), "layers.1.qkv")
    assert qkv.bias is not None
    for number, part in enumerate(("query", "key", "value")):
        rows = slice(number * HIDDEN_SIZE, (number + 1) * HIDDEN_SIZE)
        assert torch.equal(qkv.weight[rows], tensors[f"encoder.layer.1.attention.self.{part}.weight"])
        assert torch.equal(qkv.bias[rows], tensors[f"encoder.layer.1.attention.self.{part}.bias"])


def test_names(folder: Path) -> None:
    source = source_of(folder)
    weights = source.weights()
    layer = [f"layers.2.{name}" for name in ("qkv", "o", "gate_up", "down")]
    assert source.linear_names[-4:] == tuple(weights.linears)[-4:]
    assert sorted(source.linear_names[-4:]) == sorted(layer)
    assert len(source.linear_names) == 12
    norms = {f"layers.{number}.{norm}_norm" for number in range(3) for norm in ("attention", "mlp")}
    expected = {f"{norm}.{kind}" for norm in norms | {"embedding_norm"} for kind in ("weight", "bias")}
    assert set(weights.tensors) == expected | {"words", "positions", "types"}


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


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "mpnet", "albert"])
def test_the_prefix_of_a_larger_model(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    plain = source_of(folder).weights()
    prefix = "roberta" if family == "roberta" else family
    rewrite(folder, lambda tensors: {f"{prefix}.{name}": tensor for name, tensor in tensors.items()})
    assert_same(source_of(folder).weights(), plain)


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet"])
def test_a_module_gives_the_same(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / "model")
    module = AutoModel.from_pretrained(folder, dtype=torch.float32)
    assert_same(source_of(folder, ModuleCheckpoint(module)).weights(), source_of(folder).weights())


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
    with pytest.raises(ModelError, match=f"^the tensor '{name}'.* has the shape .*; config.json asks for ") as raised:
        source_of(folder).check()
    assert f"'{name}' in {folder / 'model.safetensors'}" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("tensor", [torch.zeros(HIDDEN_SIZE, dtype=torch.float8_e4m3fn), torch.zeros(())])
def test_what_is_not_plain_weights(tensor: Tensor, folder: Path) -> None:
    name = "encoder.layer.1.output.dense.bias"
    rewrite(folder, lambda tensors: {**tensors, name: tensor})
    with pytest.raises(ModelError, match=f"^the tensor '{name}' in .* is stored as .* only plain weights"):
        source_of(folder).check()


def test_unused_tensors_are_left_alone(folder: Path) -> None:
    plain = source_of(folder).weights()
    rewrite(folder, lambda tensors: {**tensors, "cls.predictions.bias": torch.ones(3)})
    assert_same(source_of(folder).weights(), plain)


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint in memory."""

    tensors: Tensors

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def on_meta(self, name: str) -> Tensor:
        return self.tensors[name].to("meta")

    def place(self, name: str) -> str:
        return repr(name)


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


def test_halves_change_places() -> None:
    held = {"both": torch.arange(192.0).view(96, 2)}
    weights = small(held, {"layers.0.gate_up.weight": Recipe(("both",), swaps_halves=True)}).weights()
    assert linear(weights, "layers.0.gate_up").weight[:, 0].tolist() == [*range(96, 192, 2), *range(0, 96, 2)]


def test_the_first_layout_that_is_there_is_taken() -> None:
    other, norm = affine({"final_norm": ("other",)}), affine({"final_norm": ("scale",)}, has_bias=False)
    assert small({}, other, norm).weights().tensors["final_norm.weight"].tolist() == [1.0, 2.0]


def test_one_bias_too_few_is_no_layout_without_biases() -> None:
    both = affine({"final_norm": ("scale",), "embedding_norm": ("scale",)})
    poorer = affine({"final_norm": ("scale",), "embedding_norm": ("scale",)}, has_bias=False)
    richer = both | {"embedding_norm.bias": Recipe(("lost.bias",))}
    with pytest.raises(
        ModelError, match=r"^the weights have no tensor 'lost\.bias', which config.json asks for; --engine"
    ):
        small({"scale.bias": torch.zeros(2)}, richer, poorer)


def test_what_is_derived_stands_in_for_what_was_read() -> None:
    def derive(config: PretrainedConfig, tensors: Mapping[str, Tensor], num_positions: int) -> Tensors:
        return {"final_norm.weight": tensors["final_norm.weight"] * num_positions}

    weights = small({}, affine({"final_norm": ("scale",)}, has_bias=False), derive=derive).weights()
    assert weights.tensors["final_norm.weight"].tolist() == [7.0, 14.0]


def test_each_layer_has_names_of_its_own() -> None:
    spec = dataclasses.replace(BERT, layers=(LayerSpec(),) * 2)
    recipes = in_layers(spec, "h.{}", affine({"o": ("out",), "qkv": ("q", "k")}, has_bias=False))
    assert recipes["layers.1.qkv.weight"] == Recipe(("h.1.q.weight", "h.1.k.weight"))
    assert len(recipes) == 4
