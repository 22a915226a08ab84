"""Llama. A layer ends with the norm that follows it, once it has been told which one that is."""

import torch

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.modules.rms_norm import RMSNorm
from tensorrt_llm.stand_in.decoder import Decoder, Layer
from tensorrt_llm.stand_in.interface import PredefinedAttentionMask


class LlamaDecoderLayer(Layer):
    hands_words_to_mlp = True

    def __init__(self, model_config: ModelConfig, layer_idx: int) -> None:
        super().__init__(model_config, layer_idx)
        self.next_layer_layernorm: RMSNorm = None  # type: ignore[assignment]
        is_causal = model_config.is_generation
        self.words["attention_mask"] = PredefinedAttentionMask.CAUSAL if is_causal else PredefinedAttentionMask.FULL

    def begin(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return super().begin(hidden_states, None) if residual is None else (hidden_states, residual)

    def end(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.next_layer_layernorm is not None:
            hidden_states, residual = self.next_layer_layernorm(hidden_states, residual)
        return hidden_states, residual


class LlamaModel(Decoder):
    layer = LlamaDecoderLayer

    def finish(self, hidden_states: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """The last layer has applied the last norm."""
        return hidden_states
