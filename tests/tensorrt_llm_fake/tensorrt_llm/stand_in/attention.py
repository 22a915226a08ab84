"""Attention on a packed batch, each sequence by transformers' own eager function.

Shapes: T tokens of all sequences, S of one, H heads, K heads of keys and values, d numbers a head.
"""

import importlib
from typing import Any

import torch
from torch import nn

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.modules.linear import Linear, WeightMode, WeightsLoadingConfig
from tensorrt_llm._torch.modules.rms_norm import RMSNorm
from tensorrt_llm.stand_in.interface import AttentionMetadata, PredefinedAttentionMask


class Attention(nn.Module):
    def __init__(
        self,
        *,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        max_position_embeddings: int,
        bias: bool,
        layer_idx: int | None = None,
        dtype: Any = None,
        dense_bias: bool | None = None,
        config: ModelConfig,
    ) -> None:
        super().__init__()
        pretrained = config.pretrained_config
        self.layer_idx = layer_idx
        self.num_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.num_key_value_groups = num_attention_heads // num_key_value_heads
        self.head_dim = getattr(pretrained, "head_dim", None) or hidden_size // num_attention_heads
        self.q_size, self.kv_size = num_attention_heads * self.head_dim, num_key_value_heads * self.head_dim
        self.qkv_proj = Linear(
            hidden_size,
            self.q_size + 2 * self.kv_size,
            bias=bias,
            dtype=dtype,
            weights_loading_config=WeightsLoadingConfig(weight_mode=WeightMode.FUSED_QKV_LINEAR),
            quant_config=config.get_quant_config(),
            skip_create_weights_in_init=config.skip_create_weights_in_init,
        )
        self.o_proj = Linear(
            self.q_size,
            hidden_size,
            bias=bias if dense_bias is None else dense_bias,
            dtype=dtype,
            quant_config=config.get_quant_config(),
            skip_create_weights_in_init=config.skip_create_weights_in_init,
        )
        kind = pretrained.model_type.replace("-", "_")
        # Not a module of ours: nothing of it is in a file of weights.
        self._library = [importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")]
        names = vars(self._library[0])
        self._rotary = [names[name](pretrained) for name in names if name.endswith("RotaryEmbedding")][:1]

    def forward(
        self,
        position_ids: torch.Tensor | None,
        hidden_states: torch.Tensor,
        attn_metadata: AttentionMetadata,
        attention_mask: PredefinedAttentionMask = PredefinedAttentionMask.CAUSAL,
        mrope_config: Any = None,
        all_reduce_params: Any = None,
        lora_params: Any = None,
        attention_window_size: int | None = None,
        attention_mask_data: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """hidden_states [T, D], position_ids [1, T]; [T, D]."""
        query, key, value = self.qkv_proj(hidden_states).split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        query, key = self.apply_qk_norm(query, key)
        query, key, value = (self._by_head(each) for each in (query, key, value))
        for rotary in self._rotary:  # BERT has none, and hands on no positions
            assert position_ids is not None
            assert position_ids.shape == (1, len(hidden_states)), "position_ids are [1, T]"
            query, key = self._library[0].apply_rotary_pos_emb(query, key, *rotary(hidden_states, position_ids))
        # What belongs to no sequence is never computed, and holds whatever was there.
        output = torch.full((len(hidden_states), self.q_size), torch.nan, dtype=hidden_states.dtype)
        for start, end in attn_metadata.spans():
            rows, _ = self._library[0].eager_attention_forward(
                self,
                *(each[:, :, start:end] for each in (query, key, value)),
                _mask(attention_mask, end - start),
                scaling=self.head_dim**-0.5,
            )
            output[start:end] = rows.reshape(end - start, self.q_size)
        projected: torch.Tensor = self.o_proj(output)
        return projected

    def apply_qk_norm(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return query, key

    def _by_head(self, rows: torch.Tensor) -> torch.Tensor:
        """[T, H * d] as [1, H, T, d]."""
        return rows.view(1, len(rows), -1, self.head_dim).transpose(1, 2)


class QKNormRoPEAttention(Attention):
    """With a norm for each head of queries and keys."""

    def __init__(self, *, config: ModelConfig, **others: Any) -> None:
        super().__init__(config=config, **others)
        eps = config.pretrained_config.rms_norm_eps
        self.q_norm = RMSNorm(hidden_size=self.head_dim, eps=eps)
        self.k_norm = RMSNorm(hidden_size=self.head_dim, eps=eps)

    def apply_qk_norm(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        query = self.q_norm(query.reshape(-1, self.head_dim)).view_as(query)
        return query, self.k_norm(key.reshape(-1, self.head_dim)).view_as(key)


def _mask(kind: PredefinedAttentionMask, seqlen: int) -> torch.Tensor | None:
    """[S, S], added to scores."""
    if kind == PredefinedAttentionMask.CAUSAL:
        return torch.full((seqlen, seqlen), float("-inf")).triu(1)
    if kind == PredefinedAttentionMask.FULL:
        return None
    raise ValueError("Unexpected attention mask type")
