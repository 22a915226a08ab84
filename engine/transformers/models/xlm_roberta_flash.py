"""Jina's XLM-RoBERTa: with absolute positions, and with rotary positions and adapters.

The first is jina-reranker-v2-base-multilingual, the second jina-embeddings-v3. Read:
jinaai/xlm-roberta-flash-implementation, modeling_xlm_roberta.py and modeling_lora.py.

The reranker has transformers' layers, and weights of other names. jina-embeddings-v3 has low-rank adapters for tasks on
every layer and table. A sequence is computed with the adapter of its task, or with none. All are computed in one
product for all tasks, of which each token keeps its own, so sequences of several tasks share a batch. `adapters`
says which: see engine.types.Batch.

Shapes: B sequences of S tokens, A adapters of rank R, [A, R, in] and [A, out, R] of a layer.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification, XLMRobertaModel
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Chunk, WeightConverter, WeightRenaming
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling

from engine.transformers.models.parts import OurConfig, OurModel, angles, attended, in_heads, rotated


class XLMRobertaFlashConfig(XLMRobertaConfig):
    """transformers' own keys."""

    model_type = "xlm-roberta-flash"


class XLMRobertaFlashModel(XLMRobertaModel):
    """The rows of tokens."""

    config_class = XLMRobertaFlashConfig


class XLMRobertaFlashForSequenceClassification(XLMRobertaForSequenceClassification):
    """Scores of the first row."""

    config_class = XLMRobertaFlashConfig


_PARTS = [f"attention.self.{name}" for name in ("query", "key", "value")]
register_checkpoint_conversion_mapping(
    XLMRobertaFlashConfig.model_type,
    [
        WeightRenaming(r"emb_ln", r"embeddings.LayerNorm"),
        WeightRenaming(r"encoder.layers", r"encoder.layer"),
        WeightRenaming(r"mixer.out_proj", r"attention.output.dense"),
        WeightRenaming(r"norm1", r"attention.output.LayerNorm"),
        WeightRenaming(r"mlp.fc1", r"intermediate.dense"),
        WeightRenaming(r"mlp.fc2", r"output.dense"),
        WeightRenaming(r"norm2", r"output.LayerNorm"),
        WeightConverter(source_patterns="mixer.Wqkv", target_patterns=_PARTS, operations=[Chunk(dim=0)]),
    ],
    overwrite=True,
)


class JinaAdaptersConfig(OurConfig):
    """The keys that are its own."""

    model_type = "jina_adapters"

    rope_theta: float = 20000.0
    lora_rank: int = 4
    lora_alpha: float = 1.0
    lora_adaptations: list[str] | None = None


class _Linear(nn.Module):
    """A layer with adapters: x (W + scale B A)."""

    def __init__(self, config: JinaAdaptersConfig, size: int, to_size: int) -> None:
        super().__init__()
        num, rank = len(config.lora_adaptations or ()), config.lora_rank
        self.plain = nn.Linear(size, to_size)
        self.lora_A, self.lora_B = _empty(num, rank, size), _empty(num, to_size, rank)

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """[B, S, in] to [B, S, out]. chosen: [B, S, A * R], the scale where a token's adapter is, else 0."""
        thin = functional.linear(rows, self.lora_A.flatten(0, 1)) * chosen
        found: Tensor = self.plain(rows) + functional.linear(thin, self.lora_B.transpose(0, 1).flatten(1))
        return found


class _Table(nn.Module):
    """An embedding with adapters: row i of W + scale A B."""

    def __init__(self, config: JinaAdaptersConfig, num_rows: int, padding_idx: int | None = None) -> None:
        super().__init__()
        num, rank = len(config.lora_adaptations or ()), config.lora_rank
        self.plain = nn.Embedding(num_rows, config.hidden_size, padding_idx=padding_idx)
        self.lora_A, self.lora_B = _empty(num, num_rows, rank), _empty(num, rank, config.hidden_size)

    def forward(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Ids int64 [B, S] to [B, S, D]."""
        thin = self.lora_A[:, ids].permute(1, 2, 0, 3).flatten(2) * chosen
        found: Tensor = self.plain(ids) + thin @ self.lora_B.flatten(0, 1)
        return found


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape))


class _Layer(nn.Module):
    def __init__(self, config: JinaAdaptersConfig) -> None:
        super().__init__()
        self.config, size, wide = config, config.hidden_size, config.intermediate_size
        linear, norm = partial(_Linear, config), partial(nn.LayerNorm, size, eps=config.layer_norm_eps)
        self.mixer: Any = nn.ModuleDict({"Wqkv": linear(size, 3 * size), "out_proj": linear(size, size)})
        self.mlp: Any = nn.ModuleDict({"fc1": linear(size, wide), "fc2": linear(wide, size)})
        self.norm1, self.norm2 = norm(), norm()

    def forward(self, rows: Tensor, chosen: Tensor, turn: tuple[Tensor, Tensor], **others: Any) -> Tensor:
        parts = self.mixer["Wqkv"](rows, chosen).chunk(3, dim=-1)
        query, key, value = (in_heads(part, self.config.num_attention_heads) for part in parts)
        found = attended(self, self.config, rotated(query, turn), rotated(key, turn), value, **others)
        rows = self.norm1(self.mixer["out_proj"](found, chosen) + rows)
        normed: Tensor = self.norm2(self.mlp["fc2"](functional.gelu(self.mlp["fc1"](rows, chosen)), chosen) + rows)
        return normed


class JinaAdaptersModel(OurModel):
    """The rows of tokens."""

    config: JinaAdaptersConfig
    config_class = JinaAdaptersConfig
    base_model_prefix = "roberta"

    def __init__(self, config: JinaAdaptersConfig) -> None:
        super().__init__(config)
        words, types = _Table(config, config.vocab_size, config.pad_token_id), _Table(config, config.type_vocab_size)
        self.embeddings: Any = nn.ModuleDict({"word_embeddings": words, "token_type_embeddings": types})
        self.emb_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.encoder: Any = nn.ModuleDict({"layers": layers})
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,  # int64 [B, S]
        attention_mask: Tensor | None = None,
        adapters: Tensor | None = None,  # int64 [B, S], the number of the one for each token, from 1; 0 = none
        position_ids: Tensor | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPooling:
        """last_hidden_state [B, S, D]."""
        chosen = self._chosen(torch.zeros_like(input_ids) if adapters is None else adapters)
        words, types = self.embeddings.values()
        rows = self.emb_ln(words(input_ids, chosen) + types(torch.zeros_like(input_ids), chosen))
        turn = angles(self.config, rows, position_ids)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=rows, attention_mask=attention_mask)
        for layer in self.encoder["layers"]:
            rows = layer(rows, chosen, turn, attention_mask=mask, **others)
        return BaseModelOutputWithPooling(last_hidden_state=rows)

    def _chosen(self, adapters: Tensor) -> Tensor:
        rank, own = self.config.lora_rank, adapters[..., None]
        is_own = own == torch.arange(1, len(self.config.lora_adaptations or ()) + 1, device=own.device)
        return is_own.repeat_interleave(rank, dim=-1).to(self.dtype) * (self.config.lora_alpha / rank)


register_checkpoint_conversion_mapping(
    JinaAdaptersConfig.model_type,
    [  # the code keeps adapters as parametrizations of the weight
        WeightRenaming(r"parametrizations.weight.original", r"plain.weight"),
        WeightRenaming(r"parametrizations.weight.0.lora_", r"lora_"),
        *(WeightRenaming(f"{name}.bias", f"{name}.plain.bias") for name in ("Wqkv", "out_proj", "fc1", "fc2")),
    ],
    overwrite=True,
)
