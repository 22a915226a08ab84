"""Mistral, whose model takes no words of its own and whose layers hand theirs to attention alone."""

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
from tensorrt_llm.stand_in.interface import AttentionMetadata


class MistralAttention(Attention):
    def __init__(self, model_config: ModelConfig, layer_idx: int | None = None) -> None:
        config = model_config.pretrained_config
        super().__init__(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            bias=False,
            layer_idx=layer_idx,
            dtype=config.torch_dtype,
            config=model_config,
        )
        self.attention_window_size = getattr(config, "sliding_window", None)

    def forward(  # type: ignore[override]  # as upstream has it
        self, position_ids: torch.Tensor, hidden_states: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> torch.Tensor:
        return super().forward(
            position_ids=position_ids,
            hidden_states=hidden_states,
            attn_metadata=attn_metadata,
            attention_window_size=self.attention_window_size,
            **kwargs,
        )


class MistralDecoderLayer(DecoderLayer):
    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.layer_idx = layer_idx
        self.self_attn = MistralAttention(model_config, layer_idx=layer_idx)
        self.mlp = GatedMLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            bias=False,
            dtype=config.torch_dtype,
            config=model_config,
        )
        self.input_layernorm = RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        position_ids: torch.Tensor,
        hidden_states: torch.Tensor,
        attn_metadata: AttentionMetadata,
        residual: torch.Tensor | None = None,
        spec_metadata: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(
            position_ids=position_ids, hidden_states=hidden_states, attn_metadata=attn_metadata, **kwargs
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        assert residual is not None
        return self.mlp(hidden_states), residual


class MistralModel(DecoderModel):
    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__(model_config)
        config = model_config.pretrained_config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=config.torch_dtype)
        self.layers = nn.ModuleList([MistralDecoderLayer(model_config, idx) for idx in range(config.num_hidden_layers)])
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
        rows: torch.Tensor
        rows, _ = self.norm(hidden_states, residual)
        return rows
