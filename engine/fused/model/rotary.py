"""Tables of the angles by which queries and keys are rotated. Knows no architecture; frequencies are transformers'."""

from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.fused.choices import NotForFused

# Beyond this many positions, one long sequence changes the frequencies for all that are in its batch.
_LIMITS = {"dynamic": "max_position_embeddings", "longrope": "original_max_position_embeddings"}


def angles(config: PretrainedConfig, *, num_positions: int, layer_type: str | None = None) -> Tensor:
    """float32 [num_positions, rotated], as `Ops.rotate` takes them: cosines of rotated / 2 angles, then their sines.

    Both are multiplied by the factor that some kinds of scaling (YaRN, LongRoPE) have for attention. layer_type: for
    architectures with `rope_parameters` for each type of layer. Raises ModelError for a kind of scaling that is
    unknown or incomplete, and where its frequencies would depend on the lengths in a batch.
    """
    parameters = _parameters(config, layer_type)
    _check_length(config, parameters, num_positions)
    frequencies, factor = _frequencies(config, parameters, layer_type)
    # transformers multiplies in float32. The last bits of large angles are wrong, but models were trained with them.
    turned = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    return torch.cat((turned.cos(), turned.sin()), dim=1) * factor


def check(config: PretrainedConfig, *, layer_type: str | None = None) -> None:
    """Raises ModelError where `angles` would for any number of positions."""
    angles(config, num_positions=1, layer_type=layer_type)


def _parameters(config: PretrainedConfig, layer_type: str | None) -> dict[str, Any]:
    parameters = getattr(config, "rope_parameters", None)
    if parameters and layer_type is not None:
        parameters = parameters.get(layer_type)
    if not parameters or "rope_type" not in parameters:
        raise NotForFused("config.json has no rope_parameters, or none for a layer's type")
    return dict(parameters)


def _check_length(config: PretrainedConfig, parameters: dict[str, Any], num_positions: int) -> None:
    kind = str(parameters["rope_type"])
    name = _LIMITS.get(kind)
    if name is None:
        return
    limit = parameters.get(name, getattr(config, name, None))
    if limit is not None and num_positions > limit:
        raise NotForFused(f"the fused engine computes rope_type {kind!r} for up to {limit} tokens, not {num_positions}")


def _frequencies(config: PretrainedConfig, parameters: dict[str, Any], layer_type: str | None) -> tuple[Tensor, float]:
    """float32 [rotated / 2], by which positions are multiplied, and the factor for attention."""
    kind = str(parameters["rope_type"])
    if kind != "default" and kind not in ROPE_INIT_FUNCTIONS:
        raise NotForFused(f"the fused engine has no rope_type {kind!r}, which config.json asks for")
    try:
        if kind == "default":
            return _unscaled(config, parameters), 1.0
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), layer_type=layer_type)
    except KeyError as error:
        raise NotForFused(f"rope_parameters of config.json lack {error.args[0]!r} for rope_type {kind!r}") from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise NotForFused(f"rope_parameters of config.json have a value that rope_type {kind!r} can't have") from error
    return frequencies.float(), float(factor)


def _unscaled(config: PretrainedConfig, parameters: dict[str, Any]) -> Tensor:
    """RoFormer (Su et al., 2021): theta ** (-2 i / rotated)."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotated = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
    frequencies: Tensor = 1.0 / (parameters["rope_theta"] ** exponents)
    return frequencies
