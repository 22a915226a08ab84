"""Our classes for RoBERTa and XLM-RoBERTa, as tensorrt_llm builds them: its BERT with RoBERTa's positions, then a head.

Upstream has no RoBERTa. Its runner numbers positions 0, 1, … and takes others beside the ids in some versions alone:
older ones overwrite them without a word, and with CUDA graphs it refuses them. So the class numbers them itself.

Shapes: T tokens of all sequences, B sequences, D numbers a row of the backbone, L numbers a row of the head.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from engine.tensorrt_llm.library import private
from engine.tensorrt_llm.library.models import pool
from engine.tensorrt_llm.planning.backbone import ROBERTA_PREFIX
from engine.tensorrt_llm.planning.families import Family
from engine.tensorrt_llm.planning.head import CONFIG_KEY, HeadKind, PlannedHead
from engine.types import ModelError


def register(family: Family) -> None:
    """Make the family's class known under its `architecture`. Raises ModelError where this version can't have it."""
    upstream = private.backbone(family.module, "BertForSequenceClassification")
    backbone = private.backbone(family.module, family.backbone)

    @private.registry().register_model(family.architecture)
    class PooledEncoder(upstream):  # type: ignore[misc, valid-type]
        """One row [L] a sequence. Of upstream's classifier it has what its loader and its runner ask a model for."""

        def __init__(self, model_config: Any) -> None:
            nn.Module.__init__(self)  # upstream's own makes BERT's pooler and classifier
            self.model_config = model_config
            config = model_config.pretrained_config
            self.head = PlannedHead.from_config(getattr(config, CONFIG_KEY))
            self.model = backbone(model_config, add_pooling_layer=False)
            if self.head.kind is HeadKind.SCORE:
                self.classifier = Classifier(config.hidden_size, self.head.num_outputs)

        def forward(
            self, attn_metadata: Any, input_ids: Tensor, position_ids: Tensor | None = None, **kwargs: Any
        ) -> dict[str, Tensor]:
            """input_ids int32 [T], position_ids int32 [1, T], as of a BERT; float32 [B, L] as "logits"."""
            assert position_ids is not None, "the runner numbers the tokens"
            assert self.head.padding_idx is not None, "planned for an encoder"
            token_rows = self.model(
                attn_metadata=attn_metadata,
                input_ids=input_ids,
                token_type_ids=torch.zeros_like(input_ids),
                position_ids=positions(input_ids, position_ids.flatten(), self.head.padding_idx),
            )
            rows = pool(token_rows, attn_metadata.seq_lens_cuda, self.head.pooling)
            return {"logits": self.classifier(rows) if self.head.kind is HeadKind.SCORE else rows}

        def load_weights(self, weights: Any) -> None:
            """Upstream's own needs BERT's names, and makes float16 of whatever it was built with."""
            fill(self.model, weights)
            self.model.to(self.model_config.pretrained_config.torch_dtype)
            if self.head.kind is HeadKind.SCORE:
                _fill_plain(self.classifier, weights, "classifier.")


class Classifier(nn.Module):
    """transformers' head of RoBERTa's classifiers, on the first token. In float32, as it is small."""

    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size, dtype=torch.float32)
        self.out_proj = nn.Linear(hidden_size, num_labels, dtype=torch.float32)

    def forward(self, rows: Tensor) -> Tensor:
        """float32 [B, D] to [B, L]."""
        scores: Tensor = self.out_proj(torch.tanh(self.dense(rows)))
        return scores


def positions(input_ids: Tensor, places: Tensor, padding_idx: int) -> Tensor:
    """int32 [T]: RoBERTa's positions, see engine.rows.with_numpy. places: int32 [T], 0, 1, … in each sequence.

    A CUDA graph can record it. What pads a recorded shape has place 0, and so a position that exists.
    """
    is_token = (input_ids != padding_idx).long()
    num_before = torch.cumsum(is_token, dim=0) - is_token
    starts = torch.arange(len(input_ids), device=input_ids.device) - places
    numbers = (num_before - num_before[starts] + 1) * is_token + padding_idx
    return numbers.int()


# Modules of upstream's BERT -> theirs in the files. A joined one has its parts in upstream's order.
_IN_FILES = {
    "embedding.word_embeddings": ("embeddings.word_embeddings",),
    "embedding.position_embeddings": ("embeddings.position_embeddings",),
    "embedding.token_type_embeddings": ("embeddings.token_type_embeddings",),
    "embedding.embedding_ln": ("embeddings.LayerNorm",),
}
_IN_LAYERS = {
    "self_attn.qkv_proj": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "self_attn.o_proj": ("attention.output.dense",),
    "input_layernorm": ("attention.output.LayerNorm",),  # after attention, whatever its name says
    "mlp.fc1": ("intermediate.dense",),
    "mlp.fc2": ("output.dense",),
    "post_layernorm": ("output.LayerNorm",),
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")

Weights = Mapping[str, Any]  # tensors, or what gives one for [:]


def fill(backbone: nn.Module, weights: Weights) -> None:
    """Load upstream's BERT from a file of RoBERTa, whole or the backbone alone. Raises ModelError, see `in_files`."""
    prefix = ROBERTA_PREFIX if any(name.startswith(ROBERTA_PREFIX) for name in weights) else ""
    for name, module in backbone.named_modules():
        if not module._parameters:
            continue
        parts = [_tensors(weights, f"{prefix}{part}.") for part in in_files(name)]
        load: Any = getattr(module, "load_weights", None)
        if load is not None:
            load(weights=parts)
            continue
        for kind, parameter in module.named_parameters(recurse=False):
            parameter.data.copy_(parts[0][kind])


def in_files(module: str) -> tuple[str, ...]:
    """The names in the files of a module's parts. Raises ModelError for one that upstream's BERT did not have."""
    layer = _LAYER.fullmatch(module)
    parts = _IN_FILES.get(module, ()) if layer is None else _IN_LAYERS.get(layer[2], ())
    if not parts:
        raise ModelError(f"this tensorrt_llm has a module {module} in its BERT, which no weights are known for")
    return parts if layer is None else tuple(f"encoder.layer.{layer[1]}.{part}" for part in parts)


def _tensors(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weight and the bias of a module."""
    return {kind: weights[prefix + kind][:] for kind in ("weight", "bias") if prefix + kind in weights}


def _fill_plain(module: nn.Module, weights: Weights, prefix: str) -> None:
    for name, parameter in module.named_parameters():
        parameter.data.copy_(weights[prefix + name][:])
