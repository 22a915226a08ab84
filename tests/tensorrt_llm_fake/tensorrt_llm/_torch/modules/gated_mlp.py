"""The other half of a layer."""

from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from tensorrt_llm._torch.model_config import ModelConfig
from tensorrt_llm._torch.modules.linear import Linear, WeightMode, WeightsLoadingConfig


class GatedMLP(nn.Module):
    def __init__(
        self, *, hidden_size: int, intermediate_size: int, bias: bool, dtype: Any = None, config: ModelConfig
    ) -> None:
        super().__init__()
        self.gate_up_proj = Linear(
            hidden_size,
            2 * intermediate_size,
            bias=bias,
            dtype=dtype,
            weights_loading_config=WeightsLoadingConfig(weight_mode=WeightMode.FUSED_GATE_UP_LINEAR),
            quant_config=config.get_quant_config(),
            skip_create_weights_in_init=config.skip_create_weights_in_init,
        )
        self.down_proj = Linear(
            intermediate_size,
            hidden_size,
            bias=bias,
            dtype=dtype,
            quant_config=config.get_quant_config(),
            skip_create_weights_in_init=config.skip_create_weights_in_init,
        )
        self._activation = [ACT2FN["silu"]]

    def forward(
        self,
        x: torch.Tensor,
        all_rank_num_tokens: Any = None,
        final_all_reduce_params: Any = None,
        lora_params: Any = None,
    ) -> torch.Tensor:
        """Takes no other word, such as a mask."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        output: torch.Tensor = self.down_proj(self._activation[0](gate) * up)
        return output
