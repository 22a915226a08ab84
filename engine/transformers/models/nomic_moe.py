"""NomicBERT with mixtures of experts, as nomic-embed-text-v2-moe has them. Weights have the names of the authors' code.

Every second layer, from the second on, has experts in place of its MLP: two thin layers without bias for each expert,
and one bias for all. A token is computed by the experts of its largest router scores, weighted with these scores,
which are softmaxed over all experts and not scaled again. Read: nomic-ai/nomic-bert-2048, modeling_hf_nomic_bert.py;
huggingface/text-embeddings-inference, backends/candle/src/models/nomic.rs.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput

from engine.transformers.models.parts import OurConfig, OurModel, angles, attended, in_heads, rotated


class NomicMoeConfig(OurConfig):
    """The keys that are its own."""

    model_type = "nomic_bert_moe"

    rope_theta: float = 10000.0
    num_experts: int = 8
    moe_top_k: int = 2
    moe_every_n_layers: int = 2


class _Mlp(nn.Module):
    def __init__(self, config: NomicMoeConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.fc2(functional.gelu(self.fc1(rows)))
        return found


class _Weights(nn.Module):
    """The layers of all experts, one below the other: [experts * intermediate_size, hidden_size] each."""

    def __init__(self, config: NomicMoeConfig) -> None:
        super().__init__()
        shape = (config.num_experts * config.intermediate_size, config.hidden_size)
        self.w1, self.w2 = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))


class _Experts(nn.Module):
    def __init__(self, config: NomicMoeConfig) -> None:
        super().__init__()
        self.mlp = _Weights(config)
        self.bias = nn.Parameter(torch.empty(config.hidden_size))
        self.num_experts = config.num_experts

    def forward(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Rows [T, D] by weights [T, experts], which are 0 where an expert is not for a token."""
        found = self.bias.expand_as(rows).clone()
        layers = zip(self.mlp.w1.chunk(self.num_experts), self.mlp.w2.chunk(self.num_experts), strict=True)
        for expert, (first, second) in enumerate(layers):
            index = weights[:, expert].nonzero()[:, 0]
            computed = functional.gelu(functional.linear(rows[index], first)) @ second
            found = found.index_add(0, index, computed * weights[index, expert, None])
        return found


class _Mixture(nn.Module):
    def __init__(self, config: NomicMoeConfig) -> None:
        super().__init__()
        self.router: Any = nn.ModuleDict({"layer": nn.Linear(config.hidden_size, config.num_experts, bias=False)})
        self.experts = _Experts(config)
        self.num_chosen = config.moe_top_k

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, 1)
        scores: Tensor = self.router["layer"](flat).softmax(dim=-1, dtype=torch.float32)
        largest, chosen = scores.topk(self.num_chosen, dim=-1)
        weights = torch.zeros_like(scores).scatter(1, chosen, largest).to(rows.dtype)
        found: Tensor = self.experts(flat, weights)
        return found.view_as(rows)


class _Layer(nn.Module):
    def __init__(self, config: NomicMoeConfig, number: int) -> None:
        super().__init__()
        self.config, size = config, config.hidden_size
        self.attn: Any = nn.ModuleDict({"Wqkv": nn.Linear(size, 3 * size), "out_proj": nn.Linear(size, size)})
        self.mlp = _Mixture(config) if number % config.moe_every_n_layers == 1 else _Mlp(config)
        norm = partial(nn.LayerNorm, size, eps=config.layer_norm_eps)
        self.norm1, self.norm2 = norm(), norm()

    def forward(self, rows: Tensor, turn: tuple[Tensor, Tensor], **others: Any) -> Tensor:
        parts = (in_heads(part, self.config.num_attention_heads) for part in self.attn["Wqkv"](rows).chunk(3, dim=-1))
        query, key, value = parts
        found = attended(self, self.config, rotated(query, turn), rotated(key, turn), value, **others)
        rows = self.norm1(self.attn["out_proj"](found) + rows)
        normed: Tensor = self.norm2(self.mlp(rows) + rows)
        return normed


class NomicMoeModel(OurModel):
    """The rows of tokens."""

    config: NomicMoeConfig
    config_class = NomicMoeConfig
    base_model_prefix = "nomic_bert"

    def __init__(self, config: NomicMoeConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        words = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        types = nn.Embedding(config.type_vocab_size, size)
        self.embeddings: Any = nn.ModuleDict({"word_embeddings": words, "token_type_embeddings": types})
        self.emb_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        layers = nn.ModuleList(_Layer(config, number) for number in range(config.num_hidden_layers))
        self.encoder: Any = nn.ModuleDict({"layers": layers})
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,  # int64 [B, S]
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutput:
        """last_hidden_state [B, S, D]."""
        words, types = self.embeddings.values()
        token_type_ids = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        rows = self.emb_ln(words(input_ids) + types(token_type_ids))
        turn = angles(self.config, rows, position_ids)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=rows, attention_mask=attention_mask)
        for layer in self.encoder["layers"]:
            rows = layer(rows, turn, attention_mask=mask, **others)
        return BaseModelOutput(last_hidden_state=rows)
