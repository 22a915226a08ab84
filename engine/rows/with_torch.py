"""Makes one row a sequence of a packed batch's token rows, with torch on any device: poolings and the modules after
them.

engine.rows.with_numpy does the same with numpy, for padded mini-batches. Nothing here knows a model.

Shapes: T tokens, B sequences, D numbers a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.model.tasks import LAYER_NORM_EPSILON, NORMALIZE_FLOOR, Dense, LayerNorm, Step
from engine.model.weights import read_arrays
from engine.rows.with_numpy import pooled_in_packed
from engine.types import Batch


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
    """The modules, tensors on the device. Raises ModelError where a file has not what its config.json says."""
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
    found = activated(found, step.activation)
    if not step.has_residual:
        return found
    return found + (functional.linear(rows, tensors["residual.weight"]) if "residual.weight" in tensors else rows)


def activated(rows: Tensor, activation: str) -> Tensor:
    """Rows of the same shape. activation: one of engine.model.tasks.ACTIVATIONS."""
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


@dataclass(frozen=True, slots=True)
class Pooling:
    """The pooling of one model's token rows."""

    poolings: tuple[str, ...]  # of engine.model.tasks.POOLINGS
    modules: RowModules

    @torch.inference_mode()
    def __call__(self, token_rows: Tensor, batch: Batch) -> Tensor:
        """float32 [B, D] of token rows [T, d], where those are."""
        device, kept = token_rows.device, pooled_in_packed(batch)
        if kept is None:
            return self.modules(pool(token_rows, on_device(batch.cu_seqlens, device), poolings=self.poolings))
        index, cu_seqlens = on_device(kept.index, device), on_device(kept.cu_seqlens, device)
        num_dropped = on_device(kept.num_dropped, device)
        return self.modules(pool(token_rows[index], cu_seqlens, poolings=self.poolings, num_dropped=num_dropped))


def pool(
    token_rows: Tensor, cu_seqlens: Tensor, *, poolings: Sequence[str], num_dropped: Tensor | None = None
) -> Tensor:
    """float32 [B, len(poolings) * D] of token rows [T, D] and int64 bounds [B + 1].

    num_dropped: int64 [B], how many tokens of each sequence came before those here; None = none. No sequence may be
    empty. A row depends on its own sequence alone, to the last bit.
    """
    return torch.cat([_pool(token_rows, cu_seqlens, pooling, num_dropped) for pooling in poolings], dim=1)


def _pool(token_rows: Tensor, cu_seqlens: Tensor, pooling: str, num_dropped: Tensor | None) -> Tensor:
    starts = cu_seqlens[:-1]
    match pooling:
        case "cls":
            return token_rows[starts].float()
        case "last":
            return token_rows[cu_seqlens[1:] - 1].float()
        case "max":
            return functional.embedding_bag(_every(token_rows), token_rows.float(), offsets=starts, mode="max")
        case "mean":
            return _mean(token_rows, cu_seqlens).float()
        case "mean_sqrt_len_tokens":
            return (_mean(token_rows, cu_seqlens) * cu_seqlens.diff().sqrt()[:, None]).float()
    assert pooling == "weightedmean", pooling
    return _weighted_mean(token_rows, cu_seqlens, torch.zeros_like(starts) if num_dropped is None else num_dropped)


def _mean(token_rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A sum in float64 is exact in float32 for any length; differences of running sums would not be."""
    return functional.embedding_bag(_every(token_rows), token_rows.double(), offsets=cu_seqlens[:-1], mode="mean")


def _weighted_mean(token_rows: Tensor, cu_seqlens: Tensor, num_dropped: Tensor) -> Tensor:
    """A token weighs as much as it has tokens up to itself, those that were dropped too."""
    every, seqlens = _every(token_rows), cu_seqlens.diff()
    first = cu_seqlens[:-1] - num_dropped
    weights = (every - first.repeat_interleave(seqlens, output_size=len(every)) + 1).double()
    sums = functional.embedding_bag(
        every, token_rows.double(), offsets=cu_seqlens[:-1], mode="sum", per_sample_weights=weights
    )
    return (sums / (seqlens * (seqlens + 1) / 2 + seqlens * num_dropped)[:, None]).float()


def _every(token_rows: Tensor) -> Tensor:
    return torch.arange(len(token_rows), device=token_rows.device)


def on_device(values: NDArray[Any], device: torch.device, *, dtype: torch.dtype = torch.int64) -> Tensor:
    """Copied: a batch's arrays are views of what was received, and may be read-only.

    A copy to a GPU is only started, in stream order; nothing waits for it here.
    """
    tensor = torch.tensor(values, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
