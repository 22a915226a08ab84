"""T5's encoder with a bias by distance instead of one for each pair of tokens, so that packed sequences fit in memory.

Everything but the attention of a layer is transformers' own. Padded sequences get the library's bias, too.

Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, section 2.1: each head
adds a learned number to a score, chosen by the bucket of the distance from query to key. The first layer's numbers
serve all layers, and scores are not scaled.

Shapes: B sequences side by side, S tokens of the longest (packed: 1 and all tokens), N heads, D numbers a row.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import MT5Config, T5Config, T5EncoderModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention, eager_attention_forward

__all__ = ["MT5Config", "T5Config", "T5Encoder"]  # see `OWN`


class T5Encoder(T5EncoderModel):
    """The encoder of T5 and mT5 of a file that may have a decoder, too."""

    def __init__(self, config: T5Config) -> None:
        """config: of T5, or mT5's MT5Config, which has the same keys."""
        super().__init__(config)
        blocks: Any = self.encoder.block
        for number, block in enumerate(blocks):
            block.layer[0].SelfAttention = _Attention(config, has_relative_attention_bias=number == 0, layer_idx=number)
        self.post_init()


class _Attention(T5Attention):
    """The attention of a sequence to itself."""

    def forward(  # type: ignore[override]  # of the library's arguments, the encoder passes these
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        *,
        position_bias: Tensor | None = None,
        past_key_values: None = None,
        max_length_q: int | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor, None]:
        """Rows [B, S, D], and the bias for the layers after this one.

        position_bias: None = this is the first layer. max_length_q: of packed sequences.
        """
        shape = (*hidden_states.shape[:-1], self.n_heads, self.key_value_proj_dim)
        query, key, value = (layer(hidden_states).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if position_bias is None:
            position_bias = self._bias(shape[1], max_length_q)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        if max_length_q is None:
            others["position_bias"] = position_bias
        else:
            others |= {"distance_bias": position_bias, "max_length_q": max_length_q}
        rows, _ = attend(self, query, key, value, mask, scaling=self.scaling, **others)
        return self.o(rows.reshape(*shape[:2], -1)), position_bias, None

    def _bias(self, num_tokens: int, max_seqlen: int | None) -> Tensor:
        """The library's own, [1, N, S, S]; for packed sequences a table: see attention.py."""
        bias: Tensor
        if max_seqlen is None:
            bias = self.compute_bias(num_tokens, num_tokens)
            return bias
        buckets = self._relative_position_bucket(
            torch.arange(1 - max_seqlen, max_seqlen, device=self.relative_attention_bias.weight.device),
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        bias = self.relative_attention_bias(buckets)
        return bias.T
