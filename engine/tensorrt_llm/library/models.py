"""Our classes of models, as tensorrt_llm builds them: a backbone of its own, then the pooling, then the head.

Upstream's classes end in the scores of the whole vocabulary, and see only what comes before a token. Ours are
registered under names of their own, so the checkpoint's `architectures` is replaced, and nothing of upstream's is.

Shapes: T tokens of all sequences, B sequences, D numbers a row of the backbone, L numbers a row of the head.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.tensorrt_llm.checks.families import Family
from engine.tensorrt_llm.checks.names import SCORE, score_rows, with_or_without_prefix
from engine.tensorrt_llm.library import private
from engine.tensorrt_llm.library.head import CONFIG_KEY, Head, HeadKind
from engine.tensorrt_llm.library.layers import attend_to_all, link_norms
from engine.tensorrt_llm.library.pooling import pool


def register(family: Family) -> None:
    """Make the family's class known under its `architecture`. Raises ModelError where this version can't have it."""
    upstream = private.registry()
    backbone = private.backbone(family.module, family.backbone)

    @upstream.register_model(family.architecture)
    class PooledModel(upstream.base):  # type: ignore[misc, name-defined]
        """One row [L] a sequence."""

        def __init__(self, model_config: Any) -> None:
            nn.Module.__init__(self)  # the base's own makes the scores of the vocabulary
            self.model_config = model_config
            config = model_config.pretrained_config
            self.head = Head.from_config(getattr(config, CONFIG_KEY))
            self.model = backbone(model_config)
            if self.head.kind is not HeadKind.EMBED:
                # float32, as it is small; no layer of upstream's, so that no quantization touches it
                self.score = nn.Linear(config.hidden_size, self.head.num_outputs, bias=False, dtype=torch.float32)
            if not self.head.is_causal:
                attend_to_all(self.model.layers, private.full_mask())

        def forward(
            self, attn_metadata: Any, input_ids: Tensor, position_ids: Tensor | None = None, **kwargs: Any
        ) -> dict[str, Tensor]:
            """input_ids int32 [T], position_ids int32 [1, T]; float32 [B, L] as "logits".

            kwargs: what the runner adds, such as `seq_lens` while no graph is used; some backbones would choke on it.
            """
            token_rows = self.model(attn_metadata=attn_metadata, input_ids=input_ids, position_ids=position_ids)
            rows = pool(token_rows, attn_metadata.seq_lens_cuda, self.head.pooling)
            if self.head.kind is not HeadKind.EMBED:
                rows = functional.linear(rows, self.score.weight)
            return {"logits": rows}

        def load_weights(self, weights: Any, weight_mapper: Any = None, skip_modules: Any = (), **kwargs: Any) -> None:
            """The head's are read first: upstream may let go of a weight once its own module has it."""
            is_tied = bool(getattr(self.model_config.pretrained_config, "tie_word_embeddings", False))
            rows = score_rows(weights, self.head, is_tied=is_tied)
            super().load_weights(weights, weight_mapper=weight_mapper, skip_modules=[*skip_modules, SCORE], **kwargs)
            if rows is not None:
                self.score.weight.data.copy_(rows)
            link_norms(self.model)

    @upstream.register_mapper("HF", family.architecture)
    class Mapper(upstream.mapper):  # type: ignore[misc, name-defined]
        """Takes files of the backbone alone, as embedding models have them."""

        def filter_weights(self, prefix: str, weights: Any) -> dict[str, Any]:
            """The weights below a module's name, by the rest of their names."""
            return with_or_without_prefix(super().filter_weights, prefix, weights)
