"""Qwen2, whose layers hand all their words to the MLP too: a mask among them is an error there."""

from typing import Any

import torch
from torch import nn

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.modeling_utils import DecoderModel, DecoderModelForCausalLM, register_auto_model
from tensorrt_llm._torch.modules.decoder_layer import DecoderLayer
from tensorrt_llm._torch.modules.embedding import Embedding
from tensorrt_llm._torch.modules.gated_mlp import GatedMLP
from tensorrt_llm._torch.modules.linear import Linear
from tensorrt_llm._torch.modules.rms_norm import RMSNorm
from tensorrt_llm.stand_in.attention import Attention
from tensorrt_llm.stand_in.interface import AttentionMetadata


class QwenAttention(Attention):
    def __init__(self, model_config: ModelConfig, layer_idx: int | None = None) -> None:
        config = model_config.pretrained_config
        super().__init__(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            bias=True,
            layer_idx=layer_idx,
            dtype=config.torch_dtype,
            dense_bias=False,
            config=model_config,
        )


class QwenDecoderLayer(DecoderLayer):
    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.layer_idx = layer_idx
        self.self_attn = QwenAttention(model_config, layer_idx=layer_idx)
        self.mlp = GatedMLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            bias=getattr(config, "mlp_bias", False),
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
        residual: torch.Tensor | None,
        mrope_config: Any = None,
        spec_metadata: Any = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(
            position_ids=position_ids,
            hidden_states=hidden_states,
            attn_metadata=attn_metadata,
            mrope_config=mrope_config,
            **kwargs,
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        assert residual is not None
        return self.mlp(hidden_states, **kwargs), residual


class QwenModel(DecoderModel):
    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__(model_config)
        config = model_config.pretrained_config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=config.torch_dtype)
        self.layers = nn.ModuleList([QwenDecoderLayer(model_config, idx) for idx in range(config.num_hidden_layers)])
        self.norm = RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        mrope_config: Any = None,
        spec_metadata: Any = None,
        **kwargs: Any,
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
                mrope_config=mrope_config,
                spec_metadata=spec_metadata,
                **kwargs,
            )
        rows: torch.Tensor
        rows, _ = self.norm(hidden_states, residual)
        return rows


@register_auto_model("Qwen2ForRewardModel")
class Qwen2ForRewardModel(DecoderModelForCausalLM[Any, Any]):
    def __init__(self, model_config: ModelConfig) -> None:
        nn.Module.__init__(self)
        self.model_config = model_config
        self.model = QwenModel(model_config)
        size = model_config.pretrained_config.hidden_size
        self.score = nn.Sequential(Linear(size, size), nn.ReLU(), Linear(size, 1))

    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The last token's score [B, 1], by the lengths on the host."""
        assert attn_metadata.seq_lens is not None
        scores: torch.Tensor = self.score(self.model(attn_metadata, input_ids, position_ids=position_ids))
        return scores[torch.cumsum(attn_metadata.seq_lens, dim=0) - 1]
