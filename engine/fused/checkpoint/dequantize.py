"""Reads a checkpoint of FP8 weights as plain float32 weights. Knows no model.

Shapes: N rows and K columns of a weight, blocks of n rows and k columns; the last ones may be smaller.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.fused.checkpoint.tensors import Checkpoint
from engine.model.quantization import BLOCK, CHANNEL, TENSOR, StoredFp8
from engine.types import ModelError

_FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
# Of activations and of caches of keys and values. Each of ours is quantized as it comes, by a scale of its own.
_OTHER_SCALES = (
    "input_scale", "input_scale_inv", "activation_scale", "output_scale",
    "q_scale", "k_scale", "v_scale", "kv_scale", "prob_scale", "input_zero_point", "weight_zero_point",
)  # fmt: skip


class DequantizedCheckpoint:
    """A Checkpoint without the scales among its names; plain tensors go through as they are."""

    def __init__(self, checkpoint: Checkpoint, stored: StoredFp8) -> None:
        self._checkpoint = checkpoint
        self._stored = stored
        hidden = (*stored.scale_names, *_OTHER_SCALES)
        self._names = frozenset(name for name in checkpoint.names if name.rpartition(".")[2] not in hidden)

    @property
    def names(self) -> frozenset[str]:
        """See Checkpoint."""
        return self._names

    def read(self, name: str) -> Tensor:
        """See Checkpoint. FP8 weights come as float32.

        Raises ModelError where FP8 has no scale, something else has one, or one does not fit its weight.
        """
        return self._read(name, self._checkpoint.read)

    def on_meta(self, name: str) -> Tensor:
        """See Checkpoint. Raises ModelError as `read` does, but for what scales' numbers are."""
        return self._read(name, self._checkpoint.on_meta)

    def place(self, name: str) -> str:
        """See Checkpoint."""
        return self._checkpoint.place(name)

    def _read(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        tensor = read(name)
        scale_name = self._scale_name(name)
        if tensor.dtype not in _FP8:
            if scale_name is not None:
                raise _unreadable(
                    f"the tensor {self.place(name)} has a scale, but is stored as {tensor.dtype}, which is not FP8"
                )
            return tensor
        if scale_name is None:
            raise _unreadable(f"the tensor {self.place(name)} is stored as FP8, and its scale is missing")
        scale = read(scale_name)
        if not scale.dtype.is_floating_point or not (scale.is_meta or scale.float().isfinite().all()):
            raise _unreadable(
                f"the tensor {self.place(scale_name)} holds scales that are not finite floating-point numbers"
            )
        spread = _spread(scale.float(), tensor.shape, self._stored)
        if spread is None:
            raise _unreadable(
                f"the tensor {self.place(scale_name)} of shape {list(scale.shape)} does not fit a weight of "
                f"{list(tensor.shape)} with scales per {' or '.join(sorted(self._stored.granularities))}"
            )
        return tensor.float() * spread.to(tensor.device)

    def _scale_name(self, name: str) -> str | None:
        """The name of the scale that is stored for this tensor; None if it has no scale."""
        module, _, kind = name.rpartition(".")
        if kind != "weight":
            return None
        names = (f"{module}.{scale}" for scale in self._stored.scale_names)
        return next((scale for scale in names if scale in self._checkpoint.names), None)


def _unreadable(why: str) -> ModelError:
    return ModelError(f"{why}: no engine reads it; take the model's plain weights")


def _spread(scale: Tensor, shape: torch.Size, stored: StoredFp8) -> Tensor | None:
    """The factors for a weight of this shape; None if the scale does not fit it."""
    if TENSOR in stored.granularities and scale.numel() == 1:
        return scale.reshape(())
    if len(shape) != 2:
        return None
    num_rows, num_columns = shape
    if CHANNEL in stored.granularities and scale.shape in ((num_rows,), (num_rows, 1)):
        return scale.reshape(num_rows, 1)
    if BLOCK in stored.granularities and stored.block is not None:
        rows, columns = stored.block
        grid = (-(-num_rows // rows), -(-num_columns // columns))
        if scale.shape in (grid, (grid[0], 1, grid[1], 1)):
            spread = scale.reshape(grid).repeat_interleave(rows, dim=0).repeat_interleave(columns, dim=1)
            return spread[:num_rows, :num_columns]
    return None
