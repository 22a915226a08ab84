"""NVIDIA's reranker on a bidirectional Llama: llama-nemotron-rerank-1b-v2. transformers' own Llama has its layers.

Follows LlamaBidirectionalForSequenceClassification in the repository's llama_bidirectional_model.py: the score of the
mean of all tokens' rows, divided by a temperature.

Shapes: B sequences, S tokens of the longest, D numbers a row, L labels.
"""

from typing import Any

from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutputWithPast


class LlamaBidirecConfig(LlamaConfig):
    """Llama's with `is_causal` (False), and the head's `score_temperature`."""

    model_type = "llama_bidirec"


class LlamaBidirecForSequenceClassification(LlamaPreTrainedModel):
    """Mean pooling, a layer without a bias, a temperature."""

    config_class = LlamaBidirecConfig

    def __init__(self, config: LlamaBidirecConfig) -> None:
        super().__init__(config)
        self.model = LlamaModel(config)
        self.score = nn.Linear(config.hidden_size, len(config.id2label or ()), bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **others: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Scores [B, L]. attention_mask: int64 [B, S], 0 where there is padding; None = there is none."""
        output = self.model(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **others)
        rows = _mean(output.last_hidden_state, attention_mask)
        return SequenceClassifierOutputWithPast(logits=self.score(rows) / self.config.score_temperature)


def _mean(rows: Tensor, attention_mask: Tensor | None) -> Tensor:
    """[B, D] of [B, S, D]."""
    if attention_mask is None:
        return rows.mean(dim=1)
    counts = attention_mask[:, :, None].to(rows.dtype)
    return (rows * counts).sum(dim=1) / counts.sum(dim=1)
