"""Keys of the angles in config.json that transformers would pass over, or take from another place."""

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
