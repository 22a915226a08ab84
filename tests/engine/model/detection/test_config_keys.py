"""Keys of the angles in config.json that transformers would pass over, or take from another place."""

import re
from pathlib import Path
from typing import Any

import pytest

from engine.model.detection.architecture import architecture_of
from engine.types import ModelError

pytestmark = pytest.mark.holds("What a model is for")

LAYERS = {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}


def read(model_type: str, **fields: Any) -> None:
    architecture_of(Path("/nowhere"), {"model_type": model_type, **fields})


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_a_part_of_each_head_is_turned_only_where_transformers_does(model_type: str) -> None:
    read(model_type, partial_rotary_factor=1.0)
    for fields in ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}):
        with pytest.raises(ModelError, match="'partial_rotary_factor'"):
            read(model_type, **fields)
    read("phi", partial_rotary_factor=0.5)


@pytest.mark.parametrize(
    ("model_type", "agreeing", "key", "value"),
    [
        ("qwen2", {"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}, "rope_theta": 5.0}, "rope_theta", 6.0),
        ("llama", {"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 5.0}, "rope_theta", 6.0),
        ("modernbert", {"rope_parameters": LAYERS, "global_rope_theta": 1.0}, "global_rope_theta", 2.0),
        ("modernbert", {"rope_parameters": LAYERS, "local_rope_theta": 2.0}, "local_rope_theta", 1.0),
        ("gemma3_text", {"rope_parameters": LAYERS, "rope_local_base_freq": 2.0}, "rope_local_base_freq", 1.0),
    ],
)
def test_a_base_that_differs_in_two_places_is_refused(
    model_type: str, agreeing: dict[str, Any], key: str, value: float
) -> None:
    read(model_type, **agreeing)
    with pytest.raises(ModelError, match=f"'{key}' differs inside and outside"):
        read(model_type, **{**agreeing, key: value})


@pytest.mark.parametrize(
    ("model_type", "key", "value", "part"),
    [
        ("llama", "rope_scaling", {"type": "ntk", "factor": 2.0}, "rope_type 'ntk' of rope_scaling"),
        ("qwen3", "rope_parameters", {"rope_type": ["yarn"], "factor": 2.0}, "is none that transformers computes"),
        ("qwen3", "rope_parameters", {"rope_type": "linear", "factor": "2"}, "has a 'factor' that is no positive"),
        ("qwen2", "rope_scaling", {"rope_type": "yarn"}, "rope_type 'yarn' of rope_scaling in config.json needs 'fact"),
        (
            "llama",
            "rope_scaling",
            {"type": "dynamic", "factor": 2.0, "alpha": 8.0},
            "has 'alpha', which would be passed",
        ),
        ("phi3", "rope_scaling", {"type": "su", "short_factor": [1.0]}, "needs 'long_factor'"),
        ("modernbert", "rope_parameters", {"rope_type": "linear", "factor": 2.0}, "an object for each type of layer"),
        ("gemma3_text", "rope_scaling", {"full_attention": {"rope_theta": 5.0}}, "'full_attention', and a gemma3_text"),
        ("qwen3", "rope_parameters", LAYERS, "'full_attention', and a qwen3 reads none there"),
        ("modernbert", "rope_parameters", {**LAYERS, "others": {}}, "'others', which is no type of layer"),
    ],
)
def test_angles_that_transformers_does_not_compute_are_refused(
    model_type: str, key: str, value: dict[str, Any], part: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(part)):
        read(model_type, **{key: value})


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("phi3", "rope_scaling", {"type": "su", "short_factor": [1.0], "long_factor": [2]}),
        ("gemma3_text", "rope_scaling", {"rope_type": "linear", "factor": 8.0}),
        ("gpt_oss", "rope_scaling", {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "truncate": False}),
        ("llama", "rope_scaling", {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}),
    ],
)
def test_angles_that_it_computes_are_served(model_type: str, key: str, value: dict[str, Any]) -> None:
    read(model_type, **{key: value})


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("llama", "rope_type", "linear"),
        ("llama", "factor", 2.0),
        ("qwen3", "global_rope_theta", 5.0),
        ("llama", "local_rope_theta", 5.0),
        ("qwen3", "rope_local_base_freq", 5.0),
        ("bert", "rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ],
)
def test_angles_where_transformers_looks_for_none_are_refused_unless_trusted(
    model_type: str, key: str, value: object
) -> None:
    with pytest.raises(ModelError, match=f"'{key}' in config.json is .* --trust-config-key {key}$"):
        read(model_type, **{key: value})
    architecture_of(Path("/nowhere"), {"model_type": model_type, key: value}, trusted=(key,))


def test_what_is_said_inside_may_be_said_outside_too() -> None:
    rope = {"rope_type": "linear", "factor": 2.0}
    read("llama", rope_scaling=rope, **rope)
    with pytest.raises(ModelError, match="'factor'"):
        read("llama", rope_scaling=rope, factor=3.0)
