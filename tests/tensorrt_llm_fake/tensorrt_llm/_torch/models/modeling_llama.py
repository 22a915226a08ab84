"""Llama. A layer ends with the norm that follows it, once it has been told which one that is."""

from typing import Any

import torch
from torch import nn

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.modeling_utils import DecoderModel
from tensorrt_llm._torch.modules.decoder_layer import DecoderLayer
from tensorrt_llm._torch.modules.embedding import Embedding
from tensorrt_llm._torch.modules.gated_mlp import GatedMLP
from tensorrt_llm._torch.modules.rms_norm import RMSNorm
from tensorrt_llm.stand_in.attention import Attention
from tensorrt_llm.stand_in.interface import AttentionMetadata, PredefinedAttentionMask


class LlamaDecoderLayer(DecoderLayer):
    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.layer_idx = layer_idx
        self.self_attn = Attention(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            bias=config.attention_bias,
            layer_idx=layer_idx,
            dtype=config.torch_dtype,
            config=model_config,
        )
        self.mlp = GatedMLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            bias=config.mlp_bias,
            dtype=config.torch_dtype,
            config=model_config,
        )
        self.input_layernorm = RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps)
        self.next_layer_layernorm: RMSNorm = None  # type: ignore[assignment]
        self.attention_mask = PredefinedAttentionMask.CAUSAL
        if not model_config.is_generation:
            self.attention_mask = PredefinedAttentionMask.FULL

    def forward(
        self,
        position_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        attn_metadata: AttentionMetadata,
        residual: torch.Tensor | None,
        spec_metadata: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(
            position_ids=position_ids,
            hidden_states=hidden_states,
            attn_metadata=attn_metadata,
            attention_mask=self.attention_mask,
            all_reduce_params=None,
            **kwargs,
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        hidden_states = self.mlp(hidden_states, final_all_reduce_params=None, **kwargs)
        if self.next_layer_layernorm is not None:
            hidden_states, residual = self.next_layer_layernorm(hidden_states, residual)
        assert residual is not None
        return hidden_states, residual


class LlamaModel(DecoderModel):
    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__(model_config)
        config = model_config.pretrained_config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=config.torch_dtype)
        self.layers = nn.ModuleList([LlamaDecoderLayer(model_config, idx) for idx in range(config.num_hidden_layers)])
        self.norm = RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_metadata: Any = None,
        lora_params: Any = None,
    ) -> torch.Tensor:
        """The last layer has applied the last norm."""
        if (input_ids is None) ^ (inputs_embeds is not None):
            raise ValueError("You cannot specify both input_ids and inputs_embeds at the same time")
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(
                position_ids=position_ids,
                hidden_states=hidden_states,
                attn_metadata=attn_metadata,
                residual=residual,
                spec_metadata=spec_metadata,
                lora_params=lora_params,
            )
        rows: torch.Tensor = hidden_states
        return rows
