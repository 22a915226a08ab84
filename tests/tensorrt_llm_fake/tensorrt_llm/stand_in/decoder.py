"""What upstream's decoders have in common. The modules that upstream has them in say what is each one's own."""

from typing import Any, ClassVar

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

Rows = torch.Tensor


class Layer(DecoderLayer):
    attention: ClassVar[type[Attention]] = Attention
    bias: ClassVar[bool | None] = None  # of queries, keys and values; None = as config.json says
    dense_bias: ClassVar[bool | None] = None  # None = likewise
    hands_words_to_mlp: ClassVar[bool] = False

    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        config = model_config.pretrained_config
        self.layer_idx = layer_idx
        self.words: dict[str, Any] = {}  # which attention gets beside the others
        self.self_attn = self.attention(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            bias=config.attention_bias if self.bias is None else self.bias,
            layer_idx=layer_idx,
            dtype=config.torch_dtype,
            dense_bias=self.dense_bias,
            config=model_config,
        )
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
        hidden_states: Rows,
        attn_metadata: AttentionMetadata,
        residual: Rows | None,
        **kwargs: Any,
    ) -> tuple[Rows, Rows]:
        hidden_states, residual = self.begin(hidden_states, residual)
        hidden_states = self.self_attn(
            position_ids=position_ids,
            hidden_states=hidden_states,
            attn_metadata=attn_metadata,
            **self.words,
            **kwargs,
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        assert residual is not None
        return self.end(self.mlp(hidden_states, **(kwargs if self.hands_words_to_mlp else {})), residual)

    def begin(self, hidden_states: Rows, residual: Rows | None) -> tuple[Rows, Rows | None]:
        if residual is None:
            return self.input_layernorm(hidden_states), hidden_states
        normed: tuple[Rows, Rows] = self.input_layernorm(hidden_states, residual)
        return normed

    def end(self, hidden_states: Rows, residual: Rows) -> tuple[Rows, Rows]:
        return hidden_states, residual


class Decoder(DecoderModel):
    layer: ClassVar[type[Layer]]
    takes_more_words: ClassVar[bool] = False
    hands_words_on: ClassVar[bool] = False  # to its layers

    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__(model_config)
        config = model_config.pretrained_config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=config.torch_dtype)
        self.layers = nn.ModuleList([self.layer(model_config, idx) for idx in range(config.num_hidden_layers)])
        self.norm = RMSNorm(hidden_size=config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Rows:
        if kwargs and not self.takes_more_words:
            raise TypeError(f"{type(self).__name__}.forward() got an unexpected keyword argument {min(kwargs)!r}")
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
                **(kwargs if self.hands_words_on else {}),
            )
        return self.finish(hidden_states, residual)

    def finish(self, hidden_states: Rows, residual: Rows | None) -> Rows:
        rows: Rows = self.norm(hidden_states, residual)[0]
        return rows
