"""Reads adapters that PEFT itself has written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedModel

from engine.model.lora import check_apart, fitted, read_adapter
from engine.types import ModelError

# Of PEFT itself: it reads a deprecated attribute, and takes a bias for a matrix that was cut.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient:FutureWarning", "ignore:Adapter .default.")

_CONFIG = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
_LAYER = "encoder.layer.0.attention.self.query"


def _saved(config: PeftConfig, folder: Path, model: type[PreTrainedModel] = BertModel) -> Any:
    """The model with the adapter, which is saved."""
    torch.manual_seed(0)
    adapted = get_peft_model(model(_CONFIG), config)
    adapted.save_pretrained(str(folder))
    return adapted


def _change(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("use_rslora", [False, True])
def test_each_layer_has_the_rank_and_scale_that_peft_gives_it(use_rslora: bool, tmp_path: Path) -> None:
    patterns: Any = {
        "rank_pattern": {r"^encoder\.layer\.0\.attention\.self\.query": 3, r"layer\.1.*key": 5, "query": 2},
        "alpha_pattern": {"self.value": 7, r"encoder\.layer\.0.*": 11, "query": 2},
    }
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["query", "key", "value"], use_rslora=use_rslora, **patterns)
    _saved(config, tmp_path)
    adapted = PeftModel.from_pretrained(BertModel(_CONFIG), str(tmp_path))  # the file has the patterns in another order
    found = read_adapter(tmp_path, "legal")
    parts: Any = adapted.base_model.model
    expected = {
        name: (part.r["default"], part.scaling["default"])
        for name, part in parts.named_modules()
        if isinstance(part, LoraLayer)
    }
    assert {name: (layer.rank, layer.scale) for name, layer in found.layers.items()} == expected
    assert len(set(expected.values())) > 4
    assert found.extras >= {"rank_pattern", "alpha_pattern"}
    assert (found.name, found.base) == ("legal", "")


def test_the_parts_of_a_layer(tmp_path: Path) -> None:
    _saved(LoraConfig(target_modules=["query"], use_dora=True, bias="lora_only", modules_to_save=["pooler"]), tmp_path)
    found = read_adapter(tmp_path)
    magnitude = found.layers[_LAYER].magnitude
    assert magnitude is not None
    assert magnitude.shape == (16,)
    biases = {f"encoder.layer.{number}.attention.self.query.bias" for number in (0, 1)}
    assert found.whole.keys() == biases | {"pooler.dense.weight", "pooler.dense.bias"}
    assert found.extras == {"use_dora", "bias", "modules_to_save"}
    _saved(LoraConfig(target_modules=["query"], lora_bias=True), tmp_path / "biased")
    assert read_adapter(tmp_path / "biased").layers[_LAYER].bias is not None


def test_what_peft_writes_of_a_score_head_with_all_biases(tmp_path: Path) -> None:
    config = LoraConfig(target_modules=["query", "word_embeddings"], bias="all", task_type="SEQ_CLS")
    _saved(config, tmp_path, BertForSequenceClassification)
    found = read_adapter(tmp_path)
    assert {"classifier.weight", "classifier.bias", "bert.encoder.layer.0.output.dense.bias"} <= found.whole.keys()
    assert not any("original_module" in name or "base_layer" in name for name in found.whole)
    assert found.tables["bert.embeddings.word_embeddings"].b.shape == (16, 8)


def test_ia3_has_factors(tmp_path: Path) -> None:
    _saved(IA3Config(target_modules=["query", "output.dense"], feedforward_modules=["output.dense"]), tmp_path)
    found = read_adapter(tmp_path)
    assert (found.factors[_LAYER].shape, found.layers) == ((16, 1), {})
    assert found.factors["encoder.layer.0.output.dense"].shape == (1, 24)
    with pytest.raises(ModelError, match=r"'peft_type' in .*adapter_config\.json can't be computed beside"):
        check_apart(found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("init_lora_weights", "pissa_niter_4"), ("init_lora_weights", "mica"), ("use_qalora", True)),
        *(("trainable_token_indices", [3]), ("layer_replication", [[0, 2]]), ("alora_invocation_tokens", [3])),
        *(("target_parameters", ["experts.down_proj"]), ("use_bdlora", {"nblocks": 2}), ("arrow_config", {"top_k": 2})),
        *(("kasa_config", {"beta": 1.0}), ("monteclora_config", {}), ("ensure_weight_tying", True), ("bias", "some")),
    ],
)
def test_what_is_no_sum_with_a_product_is_refused_by_its_key(key: str, value: Any, tmp_path: Path) -> None:
    _saved(LoraConfig(target_modules=["query"]), tmp_path)
    _change(tmp_path, **{key: value})
    with pytest.raises(ModelError, match=rf"{key!r} in .*adapter_config\.json is .*, which is not computed here"):
        read_adapter(tmp_path)


def _without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        save_file({key: each for key, each in tensors.items() if name not in key}, folder / "adapter_model.safetensors")

    return change


def _pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: _change(folder, r=3), r"'encoder\..*' in .*adapter_model.safetensors .* of rank 3, .* 'r'"),
        (lambda folder: _change(folder, magic_scale=2), r"'magic_scale' in .*adapter_config\.json"),
        (lambda folder: _change(folder, use_dora=True), r"'use_dora' in .*adapter_config\.json does not fit"),
        (lambda folder: _change(folder, rank_pattern={"(": 2}), r"'rank_pattern' in .* no regular expression"),
        (lambda folder: _change(folder, rank_pattern={"query": 0}), r"'rank_pattern' in .* not a positive number"),
        (lambda folder: _change(folder, lora_alpha=10**400), r"'lora_alpha' or 'alpha_pattern' in .* is no number"),
        (lambda folder: _change(folder, lora_alpha=True), r"'lora_alpha' or 'alpha_pattern' in .* is no number"),
        (lambda folder: _change(folder, modules_to_save=["score"]), r"'modules_to_save' in .* has none of them"),
        (lambda folder: _change(folder, peft_type="LOHA"), r"'peft_type' in .* is 'LOHA'"),
        (lambda folder: _change(folder, peft_type="IA3"), r"no adapter of the kind that 'peft_type' in"),
        (lambda folder: _change(folder, target_modules=None), r"'target_modules' in .* is missing"),
        (lambda folder: _change(folder, target_modules=["ery"]), r"'target_modules' in .* leaves 'encoder.layer.0"),
        (
            lambda folder: _change(folder, target_modules=".*0.*query"),
            r"'target_modules' in .* leaves 'encoder.layer.1",
        ),
        (lambda folder: _change(folder, target_modules="("), r"adapter_config\.json has no names or patterns"),
        (lambda folder: _change(folder, target_modules={"query": 1}), r"'target_modules' in .* neither"),
        (lambda folder: _change(folder, exclude_modules=[_LAYER]), r"'exclude_modules' in .* leaves 'encoder.layer.0"),
        (lambda folder: _change(folder, layers_to_transform=1), r"'layers_to_transform' in .* leaves 'encoder.layer.0"),
        (lambda folder: _change(folder, layers_to_transform="1"), r"adapter_config\.json has no names or patterns"),
        (_without("layer.1.attention.self.query.lora_B"), r"'encoder.layer.1.attention.self.query' in .* not a pair"),
        (_pickled, r"adapter_model\.safetensors is missing.*adapter_model\.bin is not read"),
    ],
)
def test_what_is_wrong_is_refused_by_file_and_key(
    break_it: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    _saved(LoraConfig(target_modules=["query"]), tmp_path)
    break_it(tmp_path)
    with pytest.raises(ModelError, match=message):
        read_adapter(tmp_path)


@pytest.mark.parametrize(
    "others",
    [
        {"target_modules": ["query", _LAYER]},
        {"target_modules": r".*\.(query|key)", "exclude_modules": r".*layer\.1.*"},
        {"target_modules": ["query", "dense"], "exclude_modules": ["attention.output.dense", "pooler.dense"]},
        {"target_modules": ["query"], "layers_to_transform": [1]},
        {"target_modules": ["query"], "layers_to_transform": 1, "layers_pattern": ["blocks", "layer"]},
        {"target_modules": "all-linear", "exclude_modules": ["key"]},
    ],
)
def test_layers_that_peft_chose_are_all_read(others: dict[str, Any], tmp_path: Path) -> None:
    adapted = _saved(LoraConfig(r=2, **others), tmp_path)
    found = read_adapter(tmp_path)
    chosen = [name for name, part in adapted.base_model.model.named_modules() if isinstance(part, LoraLayer)]
    assert set(found.layers) == set(chosen)


def test_layers_are_found_with_and_without_the_class_around_them(tmp_path: Path) -> None:
    _saved(LoraConfig(target_modules=["query"]), tmp_path)
    found = read_adapter(tmp_path)
    names = [f"encoder.layer.{number}.attention.self.query" for number in (0, 1)]
    inside = {f"bert.{name}": (16, 16) for name in names}
    assert fitted(found, inside).keys() == inside.keys()
    assert fitted(found, dict.fromkeys(names, (16, 16))).keys() == set(names)
    config = LoraConfig(target_modules=["query"])
    _saved(config, tmp_path / "whole", BertForSequenceClassification)
    of_whole = read_adapter(tmp_path / "whole")
    assert fitted(of_whole, dict.fromkeys(names, (16, 16))).keys() == set(names)
    with pytest.raises(ModelError, match=r"layer\.0.*which the model has with the shape \[32, 16\]"):
        fitted(found, dict.fromkeys(names, (32, 16)))
    _change(tmp_path, base_model_name_or_path="acme/bert")
    with pytest.raises(
        ModelError, match=r"layer\.1.*lora_A.* which the model lacks; .* says 'acme/bert'; serve .* as a model"
    ):
        fitted(read_adapter(tmp_path), {names[0]: (16, 16)})
