"""As transformers names them; and upstream's own for embedding models of Qwen3, whose files lack the prefix."""

from typing import Any

from torch import nn

from tensorrt_llm._torch.models.checkpoints.base_weight_mapper import BaseWeightMapper
from tensorrt_llm._torch.models.modeling_utils import register_mapper


@register_mapper("HF")
class HfWeightMapper(BaseWeightMapper):
    def map_weights(self) -> None:
        self.mapping.update({"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]})

    def apply_callbacks(
        self, module: nn.Module, module_name: str, module_names_breakdown: list[str], weights: Any
    ) -> list[dict[str, Any]]:
        return [
            self.filter_weights(".".join([*module_names_breakdown, name]), weights)
            for name in self._mapping[module_name]
        ]

    def should_skip_module(self, module_name: str) -> bool:
        if getattr(self.model.config, "tie_word_embeddings", False) and module_name.startswith("lm_head"):
            return True
        if module_name.split(".")[-1] == "next_layer_layernorm":
            return True
        return super().should_skip_module(module_name)


@register_mapper("HF", "Qwen3ForTextEmbedding")
class Qwen3TextEmbeddingWeightMapper(HfWeightMapper):
    def filter_weights(self, prefix: str, weights: Any) -> dict[str, Any]:
        return super().filter_weights(prefix, weights) or super().filter_weights(prefix.removeprefix("model."), weights)
