"""Upstream's classifier on BERT, whole, by transformers' own."""

from typing import Any

import torch
from torch import nn
from transformers import BertForSequenceClassification as Whole

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.models.modeling_utils import register_auto_model
from tensorrt_llm.stand_in.interface import AttentionMetadata


@register_auto_model("BertForSequenceClassification")
class BertForSequenceClassification(nn.Module):
    def __init__(self, model_config: ModelConfig) -> None:
        super().__init__()
        self.model_config = model_config
        self.model = Whole(model_config.pretrained_config)

    @property
    def config(self) -> Any:
        return self.model_config.pretrained_config

    def infer_max_seq_len(self) -> int:
        return int(self.config.max_position_embeddings)

    def load_weights(self, weights: Any) -> None:
        """Needs the names of a whole model, and computes in float16 afterwards."""
        needed = self.model.state_dict()
        self.model.load_state_dict({name: weights[name][:] for name in needed})
        self.half()

    @torch.inference_mode()
    def forward(
        self,
        attn_metadata: AttentionMetadata,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        assert position_ids is not None
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        position_ids = position_ids.flatten()
        assert input_ids.shape == types.shape == position_ids.shape
        rows = [
            self.model(
                input_ids=input_ids[None, start:end],
                token_type_ids=types[None, start:end],
                position_ids=position_ids[None, start:end],
            ).logits
            for start, end in attn_metadata.spans()
        ]
        return torch.cat(rows).float()
