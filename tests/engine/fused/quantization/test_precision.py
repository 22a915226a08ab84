"""What is quantized, on which GPU, and in what order it goes back."""

import dataclasses
from typing import Any

import pytest

from engine.fused.model.spec import LayerSpec, Spec
from engine.fused.quantization.gate import by_layer, steps_back
from engine.fused.quantization.quantizing import MIN_LINEAR_PARAMETERS, decide, eligible
from engine.types import ModelError

SPEC = Spec(
    architecture="qwen3",
    family="llama",
    hidden_size=1024,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=100,
    activation="silu",
    is_gated=True,
    norm="rms",
    norm_eps=1e-6,
    is_causal=True,
    scaling=1.0,
    layers=(LayerSpec(), LayerSpec()),
)
LARGE, SMALL = MIN_LINEAR_PARAMETERS, MIN_LINEAR_PARAMETERS - 1
NAMES = [f"layers.{layer}.{kind}" for layer in range(3) for kind in ("qkv", "o", "gate_up", "down")]


@pytest.mark.parametrize(
    ("requested", "capability", "size", "is_fp8"),
    [
        ("none", (9, 0), LARGE, False),
        ("none", None, LARGE, False),
        ("auto", (9, 0), LARGE, True),
        ("auto", (8, 9), LARGE, True),
        ("auto", (10, 0), LARGE, True),
        ("auto", (12, 0), SMALL, False),
        ("auto", (8, 6), LARGE, False),
        ("auto", (8, 0), LARGE, False),
        ("auto", None, LARGE, False),
        ("fp8", (9, 0), SMALL, True),
        ("fp8", None, SMALL, True),
    ],
)
def test_decisions(requested: str, capability: tuple[int, int] | None, size: int, is_fp8: bool) -> None:
    decided = decide(requested, capability=capability, num_linear_parameters=size)
    assert decided.is_fp8 is is_fp8
    assert "\n" not in decided.reason


@pytest.mark.parametrize(
    ("requested", "capability", "words"),
    [("fp8", (8, 6), r"8\.9 or more, and this one has 8\.6"), ("int8", (9, 0), "int8 is not for the fused engine")],
)
def test_impossible_wishes(requested: str, capability: tuple[int, int], words: str) -> None:
    with pytest.raises(ModelError, match=f"--quantization {requested}") as error:
        decide(requested, capability=capability, num_linear_parameters=LARGE)
    assert error.match(words)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ("qkv", "o", "gate_up", "down")),
        ({"hidden_size": 1008}, ("qkv", "gate_up", "down")),
        ({"intermediate_size": 3080}, ("qkv", "o")),
        ({"hidden_size": 1032}, ()),
        ({"num_kv_heads": 1, "head_dim": 24}, ("o", "gate_up", "down")),  # keys would begin between multiples of 16
        ({"num_heads": 1, "num_kv_heads": 1, "head_dim": 24}, ("gate_up", "down")),
    ],
)
def test_eligible_layers(changes: dict[str, Any], kinds: tuple[str, ...]) -> None:
    names = eligible(dataclasses.replace(SPEC, **changes))
    assert names == tuple(f"layers.{layer}.{kind}" for layer in range(2) for kind in kinds)


def test_steps_go_by_kind_then_by_sensitivity() -> None:
    assert steps_back(NAMES, {"layers.0": 1.0, "layers.1": 3.0, "layers.2": 2.0}) == [
        ("layers.1.o", "layers.1.down"),
        ("layers.2.o", "layers.2.down"),
        ("layers.0.o", "layers.0.down"),
        ("layers.1.qkv", "layers.1.gate_up"),
        ("layers.2.qkv", "layers.2.gate_up"),
        ("layers.0.qkv", "layers.0.gate_up"),
    ]


def test_layers_that_are_bad_alone_go_whole_and_first() -> None:
    steps = steps_back(NAMES, dict.fromkeys(by_layer(NAMES), 0.0), frozenset({"layers.2"}))
    assert steps[:3] == [
        ("layers.2.o", "layers.2.down"),
        ("layers.2.qkv", "layers.2.gate_up"),
        ("layers.0.o", "layers.0.down"),
    ]
    assert sorted(name for step in steps for name in step) == sorted(NAMES)


def test_steps_name_only_what_is_quantized() -> None:
    steps = steps_back(["layers.0.qkv", "layers.0.gate_up", "layers.1.down"], {"layers.0": 0.0, "layers.1": 0.0})
    assert steps == [("layers.1.down",), ("layers.0.qkv", "layers.0.gate_up")]
