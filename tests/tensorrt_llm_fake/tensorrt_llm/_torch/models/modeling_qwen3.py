"""Qwen3, whose model drops what its layers would take; and upstream's own class for its embeddings."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.modeling_utils import DecoderModelForCausalLM, register_auto_model
from tensorrt_llm.stand_in.attention import QKNormRoPEAttention
from tensorrt_llm.stand_in.decoder import Decoder, Layer
from tensorrt_llm.stand_in.interface import AttentionMetadata


class Qwen3DecoderLayer(Layer):
    attention = QKNormRoPEAttention


class Qwen3Model(Decoder):
    layer = Qwen3DecoderLayer
    takes_more_words = True


@register_auto_model("Qwen3ForTextEmbedding")
class Qwen3ForTextEmbedding(DecoderModelForCausalLM[Any, Any]):
    def __init__(self, model_config: ModelConfig) -> None:
        nn.Module.__init__(self)
        self.model_config = model_config
        self.model = Qwen3Model(model_config)

    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The last token's row, of length 1."""
        assert attn_metadata.seq_lens_cuda is not None
        rows = self.model(attn_metadata, input_ids, position_ids=position_ids)
        return functional.normalize(rows[torch.cumsum(attn_metadata.seq_lens_cuda, dim=0) - 1].float(), dim=-1)
