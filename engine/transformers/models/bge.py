"""BGE's rerankers with a head for each layer: bge-reranker-v2.5-gemma2-lightweight, and -v2-minicpm-layerwise.

They follow CostWiseGemmaForCausalLM and LayerWiseMiniCPMForCausalLM (FlagOpen/FlagEmbedding,
inference/reranker/decoder_only/models) as FlagEmbedding calls them where its user chooses nothing: all layers are
computed, and no tokens are compressed. The first is a Gemma 2. The second has MiniCPM's layers, which are Granite's: a
Llama whose embeddings and residuals are multiplied. The score is a layer on the last token's row.

Shapes: B sequences, S tokens of the longest, D numbers a row.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2Model, GraniteConfig, GraniteModel
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
from transformers.models.gemma2.modeling_gemma2 import Gemma2PreTrainedModel
from transformers.models.granite.modeling_granite import GranitePreTrainedModel


class CostWiseGemmaConfig(Gemma2Config):
    """Gemma 2's, with how many heads there are, and the one that counts."""

    model_type = "cost_wise_gemma"
    num_score_heads: int = 1
    score_head: int = 0


class LayerWiseMiniCPMConfig(GraniteConfig):
    """Granite's, with how many heads there are, and the one that counts."""

    model_type = "layerwise_minicpm"
    num_score_heads: int = 1
    score_head: int = 0


class _Head(nn.Module):
    """A score of each row, without a bias."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear_head = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.linear_head(rows)
        return scores


class _LastTokenScore:
    """The forward of both."""

    model: nn.Module
    lm_head: nn.ModuleList
    config: Any
    softcap_key: ClassVar[str] = ""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **others: Any,
    ) -> SequenceClassifierOutputWithPast:
        """Scores [B, 1]. attention_mask: int64 [B, S], 0 where there is padding at the end; None = there is none."""
        output = self.model(input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **others)
        scores = self.lm_head[self.config.score_head](_last(output.last_hidden_state, attention_mask))
        if (cap := getattr(self.config, self.softcap_key, None)) is not None:
            scores = torch.tanh(scores / cap) * cap
        return SequenceClassifierOutputWithPast(logits=scores)


def _last(rows: Tensor, attention_mask: Tensor | None) -> Tensor:
    """[B, D] of [B, S, D]."""
    if attention_mask is None:
        return rows[:, -1]
    return rows[torch.arange(rows.shape[0], device=rows.device), attention_mask.sum(dim=1).long() - 1]


class CostWiseGemmaForSequenceClassification(_LastTokenScore, Gemma2PreTrainedModel):
    """Its scores are capped, as Gemma 2 caps those of its vocabulary."""

    config_class = CostWiseGemmaConfig
    softcap_key = "final_logit_softcapping"

    def __init__(self, config: CostWiseGemmaConfig) -> None:
        super().__init__(config)
        self.model = Gemma2Model(config)
        self.lm_head = nn.ModuleList(_Head(config.hidden_size) for _ in range(config.num_score_heads))
        self.post_init()


class LayerWiseMiniCPMForSequenceClassification(_LastTokenScore, GranitePreTrainedModel):
    """Its scores are not capped."""

    config_class = LayerWiseMiniCPMConfig

    def __init__(self, config: LayerWiseMiniCPMConfig) -> None:
        super().__init__(config)
        self.model = GraniteModel(config)
        self.lm_head = nn.ModuleList(_Head(config.hidden_size) for _ in range(config.num_score_heads))
        self.post_init()
