"""Linear layers that are made of several of a file's, plain or in FP8 with a scale for each block.

Shapes: N outputs, K inputs.
"""

import enum
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm._torch.model_config import QuantConfig

_BLOCK = 128


class WeightMode(str, enum.Enum):  # noqa: UP042 (as upstream has it)
    VANILLA = "vanilla"
    FUSED_QKV_LINEAR = "fused_qkv_linear"
    FUSED_GATE_UP_LINEAR = "fused_gate_up_linear"


_NUM_PARTS = {WeightMode.VANILLA: 1, WeightMode.FUSED_QKV_LINEAR: 3, WeightMode.FUSED_GATE_UP_LINEAR: 2}


@dataclass(kw_only=True)
class WeightsLoadingConfig:
    weight_mode: WeightMode = WeightMode.VANILLA


class Linear(nn.Module):
    weight: nn.Parameter
    weight_scale: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: Any = None,
        *,
        weights_loading_config: WeightsLoadingConfig | None = None,
        quant_config: QuantConfig | None = None,
        skip_create_weights_in_init: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.weights_loading_config = weights_loading_config or WeightsLoadingConfig()
        self.quant_config = quant_config
        self._weights_created = False
        if not skip_create_weights_in_init:
            self.create_weights()

    def create_weights(self) -> None:
        if self._weights_created:
            return
        shape = (self.out_features, self.in_features)
        if self._is_in_blocks():
            grid = [-(-size // _BLOCK) for size in shape]
            self.weight = _parameter(torch.empty(shape).to(torch.float8_e4m3fn))
            self.weight_scale = _parameter(torch.empty(grid))
        else:
            self.weight = _parameter(torch.empty(shape))
        self.register_parameter("bias", _parameter(torch.empty(self.out_features)) if self.has_bias else None)
        self._weights_created = True

    def load_weights(self, weights: list[dict[str, Any]], allow_partial_loading: bool = False) -> None:
        """weights: of the parts, in their order."""
        assert self._weights_created
        assert len(weights) == _NUM_PARTS[self.weights_loading_config.weight_mode]
        _copy(self.weight, torch.cat([part["weight"][:] for part in weights]))
        if self._is_in_blocks():
            names = ["weight_scale_inv" if "weight_scale_inv" in part else "weight_scale" for part in weights]
            grids = [part[name][:].squeeze() for part, name in zip(weights, names, strict=True)]
            _copy(self.weight_scale, torch.cat([grid.view(-1, self.weight_scale.shape[1]) for grid in grids]))
        if self.bias is not None:
            _copy(self.bias, torch.cat([part["bias"][:] for part in weights]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._dense(), self.bias)

    def _dense(self) -> torch.Tensor:
        """[N, K]. Upstream's kernels also round what comes in; this does not."""
        if not self._is_in_blocks():
            return self.weight
        scales = self.weight_scale.repeat_interleave(_BLOCK, 0).repeat_interleave(_BLOCK, 1)
        return self.weight.float() * scales[: self.out_features, : self.in_features]

    def _is_in_blocks(self) -> bool:
        return self.quant_config is not None and self.quant_config.quant_algo == "FP8_BLOCK_SCALES"


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _copy(destination: nn.Parameter, source: torch.Tensor) -> None:
    """Converts where the types differ, as upstream does: FP8 that nobody knows of becomes numbers without a scale."""
    assert destination.shape == source.shape, (destination.shape, source.shape)
    destination.data.copy_(source.to(destination.dtype))
