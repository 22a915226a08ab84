"""The modules after the Pooling with torch, on any device. engine.rows.modules_numpy does the same with numpy.

Shapes: B rows of D numbers, float32.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.model.arrays import read_arrays
from engine.model.steps import LAYER_NORM_EPSILON, NORMALIZE_FLOOR, Dense, LayerNorm, Step


class RowModules:
    """All steps of a model; most models have none. Never synchronises with the host."""

    def __init__(self, steps: Sequence[Step] = (), tensors: Sequence[dict[str, Tensor]] = ()) -> None:
        self._parts = list(zip(steps, tensors, strict=True))

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows of the size that the last step gives, float32; unchanged if there is no step."""
        for step, tensors in self._parts:
            rows = _applied(rows.float(), step, tensors)
        return rows


def load_modules(folder: Path, steps: Sequence[Step], *, device: torch.device) -> RowModules:
    """Its tensors are on the device. Raises ModelError where a file has not what its config.json says."""
    found = read_arrays(folder, steps)
    return RowModules(
        steps, [{name: torch.tensor(array, device=device) for name, array in one.items()} for one in found]
    )


def _applied(rows: Tensor, step: Step, tensors: dict[str, Tensor]) -> Tensor:
    match step:
        case Dense():
            return _dense(rows, step, tensors)
        case LayerNorm():
            weight, bias = tensors["norm.weight"], tensors["norm.bias"]
            return functional.layer_norm(rows, (step.size,), weight, bias, LAYER_NORM_EPSILON)
        case _:
            return functional.normalize(rows, dim=-1, eps=NORMALIZE_FLOOR)


def _dense(rows: Tensor, step: Dense, tensors: dict[str, Tensor]) -> Tensor:
    found = functional.linear(rows, tensors["linear.weight"], tensors.get("linear.bias"))
    found = _activated(found, step.activation)
    if not step.has_residual:
        return found
    return found + (functional.linear(rows, tensors["residual.weight"]) if "residual.weight" in tensors else rows)


def _activated(rows: Tensor, activation: str) -> Tensor:
    """activation: one of engine.model.steps.ACTIVATIONS."""
    match activation:
        case "Identity":
            return rows
        case "Tanh":
            return torch.tanh(rows)
        case "ReLU":
            return torch.relu(rows)
        case "Sigmoid":
            return torch.sigmoid(rows)
        case "SiLU":
            return functional.silu(rows)
    assert activation == "GELU", activation
    return functional.gelu(rows)
