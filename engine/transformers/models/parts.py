"""Parts that several of our models share. No class here or in them may be called …Attention…: transformers reads a
model's source, and would take such a class for one that can't change its attention function.

Shapes: B sequences of S tokens, N heads, D numbers a head.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class OurConfig(PreTrainedConfig):
    """The keys of all. config.json says them, or engine.model.known_code what the code takes where it is silent."""

    vocab_size: int = 1
    hidden_size: int = 1
    num_hidden_layers: int = 1
    num_attention_heads: int = 1
    intermediate_size: int = 1
    max_position_embeddings: int = 1
    type_vocab_size: int = 1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = None


class OurModel(PreTrainedModel):
    """A model of ours, with what transformers needs to know of it."""

    _supports_sdpa = True
    _supports_attention_backend = True


def in_heads(rows: Tensor, num_heads: int) -> Tensor:
    """[B, N, S, D] of [B, S, N * D]."""
    return rows.view(*rows.shape[:2], num_heads, -1).transpose(1, 2)


def attended(
    module: nn.Module, config: PreTrainedConfig, *projected: Tensor, is_causal: bool = False, **others: Any
) -> Tensor:
    """Rows [B, S, N * D] of queries, keys and values [B, N, S, D], by the attention function that is set. Every token
    sees all others that the mask does not hide; with is_causal those before it.

    others: attention_mask, and all arguments of the model's forward that it does not use itself.
    """
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(config._attn_implementation, sdpa_attention_forward)
    rows: Tensor = attend(module, *projected, is_causal=is_causal, **others)[0]
    return rows.flatten(-2)


def angles(config: Any, rows: Tensor, position_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """The cosines and sines [B, 1, S, D] of rotary positions int64 [B, S] (Su et al. 2021, arXiv 2104.09864).

    Numbers i and i + D / 2 of a head are turned together, by an angle of position * theta ** (-2 i / D). config: has
    rope_theta, and head_dim or hidden_size and num_attention_heads. rows: [B, S, N * D]. position_ids: None = from 0.
    """
    if position_ids is None:
        position_ids = torch.arange(rows.shape[1], device=rows.device)[None]
    head_size = getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, head_size, 2, device=rows.device, dtype=torch.float32) / head_size
    turned = position_ids[:, None, :, None].float() * config.rope_theta**-exponents
    turned = torch.cat((turned, turned), dim=-1)
    return turned.cos().to(rows.dtype), turned.sin().to(rows.dtype)


def rotated(rows: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys [B, N, S, D], turned by the `angles`."""
    cosines, sines = turn
    first, second = rows.chunk(2, dim=-1)
    return rows * cosines + torch.cat((-second, first), dim=-1) * sines


class Pooler(nn.Module):
    """BERT's: a layer and tanh on the first row of each sequence."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, rows: Tensor) -> Tensor:
        """[B, S, D] to [B, D]."""
        pooled: Tensor = self.dense(rows[:, 0]).tanh()
        return pooled
