"""Exactly the linear layers of transformers' own classes are chosen, and its quantizer finds the same by the names that
are written, whichever of its classes reads the folder."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.quantizers.quantizers_utils import should_convert_module

from engine.tensorrt_llm.quantize.plan import Selection, select
from tests.engine.tensorrt_llm.quantize.models import WIDE
from tests.engine.tiny_models import FAMILIES, MORE_FAMILIES, SHARED

ALL = FAMILIES | MORE_FAMILIES
# Their configurations call these otherwise.
SIZES = {"distilbert": {"dim": 128, "hidden_dim": 256}}
# Stored the other way round: engine/tensorrt_llm/quantize/plan.py refuses them.
TURNED = {"gpt2"}
SCORED = ["bert", "xlm-roberta", "distilbert", "qwen3", "llama", "modernbert", "mistral", "gte"]


def module_of(family: str, purpose: Any = AutoModel, **others: Any) -> nn.Module:
    """Without weights."""
    model_type, differences = ALL[family]
    config = AutoConfig.for_model(model_type, **{**SHARED, **differences, **WIDE, **SIZES.get(family, {}), **others})
    with torch.device("meta"):
        module: nn.Module = purpose.from_config(config)
    return module


def selection_of(module: nn.Module) -> Selection:
    return select(module.state_dict())


def stored(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def linear_layers(module: nn.Module) -> set[str]:
    return {name for name, each in module.named_modules() if type(each) is nn.Linear}


def converted(module: nn.Module, selection: Selection) -> set[str]:
    """What transformers takes to be FP8 when it reads a folder of these names."""
    names = list(selection.not_converted)
    return {name for name in linear_layers(module) if should_convert_module(name, names)}


def modules(selection: Selection) -> set[str]:
    return {name.removesuffix(".weight") for name in selection.quantized}


@pytest.mark.parametrize("family", sorted(ALL.keys() - TURNED))
def test_what_is_chosen_is_linear_and_transformers_finds_the_same(family: str) -> None:
    module = module_of(family)

    selection = selection_of(module)

    assert modules(selection) == converted(module, selection)
    in_layers = {name for name in linear_layers(module) if any(part.isdecimal() for part in name.split("."))}
    shapes = {name: module.get_parameter(f"{name}.weight").shape for name in in_layers}
    whole = {name for name in in_layers if not any(size % 128 for size in shapes[name])}
    assert modules(selection) <= in_layers
    assert whole - modules(selection) <= {name for name in whole if "router" in name or "norm" in name}
    assert selection.quantized or family == "mobilebert"  # its layers are never so wide


@pytest.mark.parametrize("family", SCORED)
def test_names_hold_for_a_class_with_a_head_and_for_the_bare_one(family: str) -> None:
    sizes: dict[str, Any] = {"num_key_value_heads": 2, "num_labels": 128}  # a head of whole blocks stays plain too
    bare, scored = module_of(family, **sizes), module_of(family, AutoModelForSequenceClassification, **sizes)
    of_bare, of_scored = selection_of(bare), selection_of(scored)
    assert of_bare.quantized

    for selection in (of_bare, of_scored):
        for module, expected in ((bare, of_bare), (scored, of_scored)):
            assert converted(module, selection) == modules(expected)


def test_what_engines_join_is_stored_alike() -> None:
    shapes = {"q_proj": (256, 128), "k_proj": (64, 128), "v_proj": (64, 128), "o_proj": (128, 256)}
    tensors = {f"model.layers.3.self_attn.{name}.weight": stored(*shape) for name, shape in shapes.items()}

    selection = select(tensors)

    assert modules(selection) == {"model.layers.3.self_attn.o_proj"}
    for name in ("q_proj", "k_proj", "v_proj"):
        assert {f"model.layers.3.self_attn.{name}", f"layers.3.self_attn.{name}"} <= set(selection.not_converted)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("embed_tokens.weight", stored(128, 128)),
        ("lm_head.weight", stored(128, 128)),
        ("score.0.weight", stored(128, 128)),
        ("model.layers.0.mlp.gate.weight", stored(128, 128)),
        ("model.layers.0.mlp.router.weight", stored(128, 128)),
        ("layers.0.mlp.experts.gate_up_proj", stored(2, 128, 128)),
        ("block.0.layer.0.SelfAttention.relative_attention_bias.weight", stored(128, 128, dtype=torch.float32)),
        ("layers.0.mlp.up_proj.weight", stored(128, 130)),
        ("layers.0.mlp.up_proj.weight", stored(0, 128)),
        ("layers.0.mlp.up_proj.weight", stored(128, 128, dtype=torch.int8)),
        ("layers.0.mlp.up_proj.bias", stored(128)),
        ("layers.0.mlp.conv.weight", stored(128, 128, 3)),
    ],
)
def test_what_stays(name: str, tensor: torch.Tensor) -> None:
    assert not select({name: tensor}).quantized


def test_experts_that_stay_are_named_as_one() -> None:
    selection = select({"model.layers.0.mlp.experts.gate_up_proj": stored(2, 128, 128)})
    assert {"model.layers.0.mlp.experts", "layers.0.mlp.experts"} <= set(selection.not_converted)
