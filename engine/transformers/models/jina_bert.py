"""JinaBERT v2: BERT with ALiBi in place of positions, and a gated MLP. Weights have the names of the authors' code.

Two repositories hold the code, in modeling_bert.py: jinaai/jina-bert-implementation (jina-embeddings-v2,
jina-reranker-v1, jina-colbert-v1) and jinaai/jina-bert-v2-qk-post-norm (jina-embeddings-v2-base-code). The second
normalizes queries and keys, has one more norm after the attention, and the halves of the MLP in the other order.
ALiBi: Press et al. 2022 (arXiv 2108.12409), here in both directions (Günther et al. 2023, arXiv 2310.19923).
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput

from engine.transformers.attention import bias_arguments
from engine.transformers.models.parts import OurConfig, OurModel, Pooler, attended, in_heads


class JinaBertConfig(OurConfig):
    """The keys that are its own."""

    model_type = "jina_bert"

    feed_forward_type: str = "geglu"  # or "reglu"
    has_qk_norm: bool = False  # the second repository's layers


class _Layer(nn.Module):
    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.config, size, wide = config, config.hidden_size, config.intermediate_size
        norm = partial(nn.LayerNorm, size, eps=config.layer_norm_eps)
        own: dict[str, nn.Module] = {name: nn.Linear(size, size) for name in ("query", "key", "value")}
        output = nn.ModuleDict({"dense": nn.Linear(size, size), "LayerNorm": norm()})
        first, second = nn.Linear(size, 2 * wide, bias=False), nn.Linear(wide, size)
        if config.has_qk_norm:
            own |= {"layer_norm_q": norm(), "layer_norm_k": norm()}
            self.mlp: Any = nn.ModuleDict({"up_gated_layer": first, "down_layer": second})
            self.layer_norm_1, self.layer_norm_2 = norm(), norm()
        else:
            self.mlp = nn.ModuleDict({"gated_layers": first, "wo": second, "layernorm": norm()})
        self.attention: Any = nn.ModuleDict({"self": nn.ModuleDict(own), "output": output})
        self.activation = {"geglu": nn.GELU, "reglu": nn.ReLU}[config.feed_forward_type]()

    def forward(self, rows: Tensor, **others: Any) -> Tensor:
        own, output = self.attention["self"], self.attention["output"]
        query, key, value = own["query"](rows), own["key"](rows), own["value"](rows)
        if self.config.has_qk_norm:
            query, key = own["layer_norm_q"](query), own["layer_norm_k"](key)
        heads = (in_heads(each, self.config.num_attention_heads) for each in (query, key, value))
        found: Tensor = output["LayerNorm"](output["dense"](attended(self, self.config, *heads, **others)) + rows)
        if not self.config.has_qk_norm:
            found = self.mlp["layernorm"](self._gated(found) + found)
            return found
        rows = self.layer_norm_1(rows + found)
        found = self.layer_norm_2(rows + self._gated(rows))
        return found

    def _gated(self, rows: Tensor) -> Tensor:
        first, second = list(self.mlp.values())[:2]
        gate, up = first(rows).chunk(2, dim=-1)
        if self.config.has_qk_norm:
            gate, up = up, gate
        found: Tensor = second(self.activation(gate) * up)
        return found


class _JinaBert(OurModel):
    config: JinaBertConfig
    config_class = JinaBertConfig
    base_model_prefix = "bert"


class JinaBertModel(_JinaBert):
    """The rows of tokens."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        embeddings = {
            "word_embeddings": nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id),
            "token_type_embeddings": nn.Embedding(config.type_vocab_size, size),
            "LayerNorm": nn.LayerNorm(size, eps=config.layer_norm_eps),
        }
        self.embeddings: Any = nn.ModuleDict(embeddings)
        self.encoder: Any = nn.ModuleDict(
            {"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))}
        )
        self.pooler = Pooler(size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,  # int64 [B, S]
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        max_length_q: int | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPooling:
        """last_hidden_state [B, S, D] and pooler_output [B, D]."""
        words, types, norm = self.embeddings.values()
        rows = norm(words(input_ids) + types(torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids))
        biases = partial(alibi, self.config.num_attention_heads)
        others |= bias_arguments(self.config, rows, attention_mask, biases, max_length_q)
        for layer in self.encoder["layer"]:
            rows = layer(rows, max_length_q=max_length_q, **others)
        return BaseModelOutputWithPooling(last_hidden_state=rows, pooler_output=self.pooler(rows))


class JinaBertForSequenceClassification(_JinaBert):
    """Scores of the pooled row, for jina-reranker-v1."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 1)
        self.post_init()

    def forward(self, input_ids: Tensor | None = None, **others: Any) -> SequenceClassifierOutput:
        """logits [B, labels]."""
        return SequenceClassifierOutput(logits=self.classifier(self.bert(input_ids=input_ids, **others).pooler_output))


def alibi(num_heads: int, distance: Tensor) -> Tensor:
    """The biases [N, …] of distances int64 […]: minus the distance, times a slope of each head."""
    slopes = torch.tensor(_slopes(num_heads), device=distance.device)
    return -slopes.view(-1, *(1,) * distance.dim()) * distance.abs()


def _slopes(num_heads: int) -> list[float]:
    """Falling powers of two. Where the number of heads is none, every second slope of twice as many fills up."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes if power == num_heads else slopes + _slopes(2 * power)[::2][: num_heads - power]
