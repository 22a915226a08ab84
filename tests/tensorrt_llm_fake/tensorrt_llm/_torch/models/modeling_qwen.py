"""Qwen2, whose layers hand all their words to the MLP too: a mask among them is an error there."""

from typing import Any

import torch
from torch import nn

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.modeling_utils import DecoderModelForCausalLM, register_auto_model
from tensorrt_llm._torch.modules.linear import Linear
from tensorrt_llm.stand_in.decoder import Decoder, Layer
from tensorrt_llm.stand_in.interface import AttentionMetadata


class QwenDecoderLayer(Layer):
    bias, dense_bias = True, False
    hands_words_to_mlp = True


class QwenModel(Decoder):
    layer = QwenDecoderLayer
    takes_more_words = hands_words_on = True


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
