"""Tables of angles hold what transformers' own modules give, for every kind of scaling."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from engine.fused.adapters.adapter import angles, check_rope
from engine.types import ModelError

_SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 4096}
_HALF = [1.0 + i / 4 for i in range(8)]  # one for each angle
_LONGROPE = {"rope_type": "longrope", "short_factor": _HALF, "long_factor": [2 * factor for factor in _HALF]}
_BY_TYPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"rope_type": "default"},
    "another theta": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn with a factor for attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 0.7,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "original_max_position_embeddings": 1024,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
}


def config_of(architecture: str, **differences: Any) -> PretrainedConfig:
    config: PretrainedConfig = AutoConfig.for_model(architecture, **(_SIZES | differences))
    return config


def of_transformers(config: PretrainedConfig, class_name: str, num_positions: int, *layer_type: str) -> Tensor:
    """[P, rotated]: cosines and sines as the architecture's own module gives them, each once."""
    folder = config.model_type.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    positions = torch.arange(num_positions)[None]
    both = getattr(module, class_name)(config)(torch.zeros(1), positions, *layer_type)
    return torch.cat([part[0, :, : part.shape[-1] // 2] for part in both], dim=-1)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_each_kind_of_scaling(scaling: str) -> None:
    config = config_of("llama", rope_parameters={"rope_theta": 1e4, **SCALINGS[scaling]})
    table = angles(config, num_positions=4096)
    assert (table.shape, table.dtype) == ((4096, 16), torch.float32)
    torch.testing.assert_close(table, of_transformers(config, "LlamaRotaryEmbedding", 4096), rtol=0, atol=1e-6)


def test_the_names_of_old_files() -> None:
    config = config_of("llama", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    expected = config_of("llama", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    torch.testing.assert_close(angles(config, num_positions=50), angles(expected, num_positions=50), rtol=0, atol=0)


@pytest.mark.parametrize("scaling", [{"rope_type": "default"}, {**_LONGROPE, "short_factor": _HALF[:4]}])
def test_a_part_of_each_head(scaling: dict[str, Any]) -> None:
    parameters = {"rope_theta": 1e4, "partial_rotary_factor": 0.5, **scaling, "long_factor": _HALF[:4]}
    config = config_of("phi3", original_max_position_embeddings=1024, pad_token_id=0, rope_parameters=parameters)
    table = angles(config, num_positions=1024)
    assert table.shape == (1024, 8)
    torch.testing.assert_close(table, of_transformers(config, "Phi3RotaryEmbedding", 1024), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize(
    ("architecture", "class_name"),
    [("gemma3_text", "Gemma3RotaryEmbedding"), ("modernbert", "ModernBertRotaryEmbedding")],
)
def test_angles_by_the_type_of_a_layer(architecture: str, class_name: str, layer_type: str) -> None:
    types = ["sliding_attention", "full_attention"]
    config = config_of(architecture, layer_types=types, rope_parameters=_BY_TYPE)
    expected = of_transformers(config, class_name, 300, layer_type)
    table = angles(config, num_positions=300, layer_type=layer_type)
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-6)
    other = angles(config, num_positions=300, layer_type=next(kind for kind in types if kind != layer_type))
    assert (table - other).abs().max() > 0.1


@pytest.mark.holds("The fused engine refuses what it would compute differently")
@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, 4096),
        ({**_LONGROPE, "original_max_position_embeddings": 1024}, 1024),
    ],
)
def test_frequencies_that_would_depend_on_a_batch_are_refused(scaling: dict[str, Any], limit: int) -> None:
    config = config_of("llama", rope_parameters={"rope_theta": 1e4, **scaling})
    check_rope(config)
    expected = of_transformers(config, "LlamaRotaryEmbedding", limit)
    torch.testing.assert_close(angles(config, num_positions=limit), expected, rtol=0, atol=1e-6)
    with pytest.raises(ModelError, match=f"up to {limit} tokens"):
        angles(config, num_positions=limit + 1)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (None, "rope_parameters"),
        ({"rope_theta": 1e4}, "rope_parameters"),
        ({"rope_type": "spiral", "rope_theta": 1e4}, "spiral"),
        ({"rope_type": "linear", "rope_theta": 1e4}, "factor"),
    ],
)
def test_unknown_and_incomplete_scaling_is_refused(parameters: dict[str, Any] | None, words: str) -> None:
    config = config_of("llama")
    config.rope_parameters = parameters
    with pytest.raises(ModelError, match=words):
        check_rope(config)
