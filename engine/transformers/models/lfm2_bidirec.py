"""Liquid AI's LFM2 that sees both ways: attention to all tokens, and short convolutions with the token in the middle.

Layers, norms and names of weights are transformers' own LFM2's. Read: LiquidAI/LFM2.5-Embedding-350M and
LFM2.5-ColBERT-350M, modeling_lfm2_bidirectional.py, which patches that class. Its convolutions read the rows beside a
text, so padding changes its rows there. Here they are those of the text alone, and packed texts are kept apart by the
positions of their tokens.

Shapes: B sequences of S tokens, or one row of all packed tokens; D numbers a row, K taps of a convolution.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Lfm2Config
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.lfm2.modeling_lfm2 import Lfm2Model


class Lfm2BidirecConfig(Lfm2Config):
    """LFM2's keys."""

    model_type = "lfm2_bidirec"


class _ShortConv(nn.Module):
    """A convolution of each number by itself, between two gates."""

    def __init__(self, config: Lfm2BidirecConfig) -> None:
        super().__init__()
        size, taps, bias = config.hidden_size, config.conv_L_cache, config.conv_bias
        self.conv = nn.Conv1d(size, size, taps, groups=size, bias=bias)  # for its weights
        self.in_proj = nn.Linear(size, 3 * size, bias=bias)
        self.out_proj = nn.Linear(size, size, bias=bias)

    def forward(self, rows: Tensor, beside: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Rows [B, S, D]. beside: see _beside."""
        before, after, values = self.in_proj(rows).chunk(3, dim=-1)
        gated, weight = before * values, self.conv.weight[:, 0]  # [D, K]
        found = torch.zeros_like(gated) if self.conv.bias is None else self.conv.bias
        for tap, (step, is_there) in enumerate(beside):
            found = found + _moved(gated, step) * is_there * weight[:, tap]
        rows = self.out_proj(after * found)
        return rows


def _beside(positions: Tensor, is_token: Tensor | None, num_taps: int) -> list[tuple[int, Tensor]]:
    """How many tokens away each tap reads, and where there is a token of the same text: bool [B, S, 1].

    positions: int64 [B, S], from 0 in each text, so no other text has the number that is asked for. is_token: None = no
    token is padding.
    """
    found = []
    for step in range(-(num_taps // 2), num_taps - num_taps // 2):
        is_there = _moved(positions[:, :, None], step) == positions[:, :, None] + step
        found.append((step, is_there if is_token is None else is_there & _moved(is_token[:, :, None], step)))
    return found


def _moved(rows: Tensor, step: int) -> Tensor:
    """The rows [B, S, …] of the tokens that are `step` after each; zeros where the row ends."""
    first = abs(step) + step
    return functional.pad(rows, (0, 0, abs(step), abs(step)))[:, first : first + rows.shape[1]]


class Lfm2BidirecModel(Lfm2Model):
    """Rows of tokens [B, S, D]."""

    config_class = Lfm2BidirecConfig
    base_model_prefix = "lfm2"  # of the weights of Lfm2BidirectionalForMaskedLM

    def __init__(self, config: Lfm2BidirecConfig) -> None:
        super().__init__(config)
        layers: Any = self.layers
        for layer in layers:
            if layer.is_attention_layer:
                layer.self_attn.is_causal = False
            else:
                layer.conv = _ShortConv(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutput:
        """ids: int64 [B, S]. attention_mask: [B, S], 0 for padding and for tokens that the others don't attend to.

        Convolutions see the latter, so padding is told by its id: late_interaction refuses models that fill queries up
        with that.
        """
        rows = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(rows.shape[1], device=rows.device)[None]
        is_token = None
        if attention_mask is not None:
            is_token = attention_mask.bool() | (input_ids != (self.config.pad_token_id or 0))
        beside = _beside(position_ids, is_token, self.config.conv_L_cache)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=rows, attention_mask=attention_mask)
        turn = self.rotary_emb(rows, position_ids=position_ids)
        layers: Any = self.layers
        for layer in layers:
            normed = layer.operator_norm(rows)
            if layer.is_attention_layer:
                found, _ = layer.self_attn(normed, position_embeddings=turn, attention_mask=mask, **others)
            else:
                found = layer.conv(normed, beside)
            rows = rows + found
            rows = rows + layer.feed_forward(layer.ffn_norm(rows))
        return BaseModelOutput(last_hidden_state=self.embedding_norm(rows))
