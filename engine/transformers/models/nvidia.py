"""NVIDIA's models on decoders that see both ways: NV-Embed, and the reranker llama-nemotron-rerank-1b-v2.

NV-Embed is a Mistral, and after it an attention of each token's row to learned latent rows: Lee et al., NV-Embed:
Improved Techniques for Training LLMs as Generalist Embedding Models, section 3.1; names of weights as in the
repository's modeling_nvembed.py. The mean of the rows and its scaling to length 1 are the pooling's.

The reranker is a Llama. It follows LlamaBidirectionalForSequenceClassification in the repository's
llama_bidirectional_model.py: the score of the mean of all tokens' rows, divided by a temperature.

Shapes: B sequences, S tokens of the longest, D numbers a row, R latent rows, N heads of C numbers each, L labels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel, MistralConfig, MistralModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutputWithPast

_WIDENING = 4  # of the layers after the attention


class NVEmbedConfig(MistralConfig):
    """Mistral's with `is_causal` (False), and the sizes of the latent attention: num_latents, num_cross_heads,
    cross_dim_head."""

    model_type = "nvembed"


class NVEmbedModel(PreTrainedModel):
    """Rows of tokens [B, S, D]."""

    config_class = NVEmbedConfig
    base_model_prefix = ""  # it is the bare transformer itself
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: NVEmbedConfig) -> None:
        super().__init__(config)
        self.embedding_model = MistralModel(config)
        self.latent_attention_model = _Latents(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """See PreTrainedModel."""
        return self.embedding_model.embed_tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any) -> BaseModelOutput:
        """ids: int64 [B, S]."""
        rows = self.embedding_model(input_ids, attention_mask=attention_mask, **others).last_hidden_state
        return BaseModelOutput(last_hidden_state=self.latent_attention_model(rows))


class _Latents(nn.Module):
    """Two blocks with a residual each: the attention, and a gated MLP."""

    def __init__(self, config: NVEmbedConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.latents = nn.Parameter(torch.empty(config.num_latents, size))
        attention = _Block(size, _Latent(size, config.num_cross_heads, config.cross_dim_head), has_context=True)
        self.cross_attend_blocks: Any = nn.ModuleList((attention, _Block(size, _Gated(size))))

    def forward(self, rows: Tensor) -> Tensor:
        attention, mlp = self.cross_attend_blocks
        rows = attention.fn(attention.norm(rows), attention.norm_context(self.latents)) + rows
        rows = mlp.fn(mlp.norm(rows)) + rows
        return rows


class _Block(nn.Module):
    """Norms before a layer."""

    def __init__(self, size: int, layer: nn.Module, *, has_context: bool = False) -> None:
        super().__init__()
        self.fn = layer
        self.norm = nn.LayerNorm(size)
        self.norm_context = nn.LayerNorm(size) if has_context else None


class _Latent(nn.Module):
    """Attention of rows [B, S, D] to latent rows [R, D]."""

    def __init__(self, size: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.to_q = nn.Linear(size, num_heads * head_dim, bias=False)
        self.to_kv = nn.Linear(size, 2 * num_heads * head_dim, bias=False)
        self.to_out = nn.Linear(num_heads * head_dim, size, bias=False)

    def forward(self, rows: Tensor, latents: Tensor) -> Tensor:
        query = self._heads(self.to_q(rows))
        halves = (self._heads(half) for half in self.to_kv(latents).chunk(2, dim=-1))
        key, value = (half.expand(rows.shape[0], -1, -1, -1) for half in halves)
        found = functional.scaled_dot_product_attention(query, key, value)
        rows = self.to_out(found.transpose(-3, -2).flatten(-2))
        return rows

    def _heads(self, rows: Tensor) -> Tensor:
        """[..., N, S, C] of [..., S, N * C]"""
        return rows.reshape(*rows.shape[:-1], self._num_heads, -1).transpose(-3, -2)


class _Gated(nn.Module):
    """Half of the first layer's numbers, each times the GELU of one of the other half."""

    def __init__(self, size: int) -> None:
        super().__init__()
        # in the place of the code's GEGLU, which has no weights
        self.net = nn.ModuleList(
            (nn.Linear(size, 2 * _WIDENING * size), nn.Identity(), nn.Linear(_WIDENING * size, size))
        )

    def forward(self, rows: Tensor) -> Tensor:
        values, gates = self.net[0](rows).chunk(2, dim=-1)
        rows = self.net[2](values * functional.gelu(gates))
        return rows


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
