"""nvidia/NV-Embed-v2 (modeling_nvembed.py, configuration_nvembed.py; Lee et al., arXiv 2405.17428, section 3.1)."""

from typing import Any

from torch import Tensor

from tests.parity.repositories.models.families import published
from tests.parity.repositories.own_code import decoder
from tests.parity.repositories.own_code.forms import MEAN, Config, Form, Shapes, Weights
from tests.parity.repositories.own_code.reading import attention, gelu, linear, norm

SIZE, HEADS, HEAD, LATENTS = 32, 2, 12, 7
CONFIG: dict[str, Any] = published("NV-Embed-v2, small")
TEXT: dict[str, Any] = CONFIG["text_config"]  # its sliding_window is of Mistral: the code's mask has none
PREFIX = "latent_attention_model"
ATTENTION, MLP = f"{PREFIX}.cross_attend_blocks.0", f"{PREFIX}.cross_attend_blocks.1"


_NORMS = (f"{ATTENTION}.norm", f"{ATTENTION}.norm_context", f"{MLP}.norm")
SHAPES: Shapes = {
    **decoder.shapes(TEXT, prefix="embedding_model."),
    **{f"{name}.{kind}": (SIZE,) for name in _NORMS for kind in ("weight", "bias")},
    f"{PREFIX}.latents": (LATENTS, SIZE),
    f"{ATTENTION}.fn.to_q.weight": (HEADS * HEAD, SIZE),
    f"{ATTENTION}.fn.to_kv.weight": (2 * HEADS * HEAD, SIZE),
    f"{ATTENTION}.fn.to_out.weight": (SIZE, HEADS * HEAD),
    f"{MLP}.fn.net.0.weight": (8 * SIZE, SIZE),
    f"{MLP}.fn.net.0.bias": (8 * SIZE,),
    f"{MLP}.fn.net.2.weight": (SIZE, 4 * SIZE),
    f"{MLP}.fn.net.2.bias": (SIZE,),
}


def token_rows(_: Config, weights: Weights, ids: list[int]) -> Tensor:
    """[S, D]"""
    rows = decoder.token_rows(TEXT, weights, ids, prefix="embedding_model.")
    latents = norm(weights, f"{ATTENTION}.norm_context", weights[f"{PREFIX}.latents"], 1e-5)
    query = linear(weights, f"{ATTENTION}.fn.to_q", norm(weights, f"{ATTENTION}.norm", rows, 1e-5))
    key, value = linear(weights, f"{ATTENTION}.fn.to_kv", latents).chunk(2, dim=-1)
    rows = linear(weights, f"{ATTENTION}.fn.to_out", attention(query, key, value, HEADS)) + rows
    values, gates = linear(weights, f"{MLP}.fn.net.0", norm(weights, f"{MLP}.norm", rows, 1e-5)).chunk(2, dim=-1)
    return linear(weights, f"{MLP}.fn.net.2", values * gelu(gates)) + rows


def mean(config: Config, weights: Weights, ids: list[int], *, first: int = 0) -> Tensor:
    return token_rows(config, weights, ids)[first:].mean(0)


FORMS = {
    "NV-Embed-v2": Form(
        config=CONFIG,
        shapes=SHAPES,
        row=mean,
        modules=MEAN,
        refused=(
            ("padding_side", "left"),
            ("is_mask_instruction", False),
            ("latent_attention_config.dim", {"latent_dim": 8}),
            ("latent_attention_config.num_rounds", {"num_rounds": 2}),
            ("text_config.attention_sinks", TEXT | {"attention_sinks": 2}),
        ),
    )
}
