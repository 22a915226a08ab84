"""Tensors by the names that a checkpoint has for them, from safetensors files. Knows no model.

Weights stored in FP8 are read as plain float32.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.fused.readers import reader_for
from engine.model.quantization import BLOCK, CHANNEL, TENSOR, StoredFp8
from engine.model.weights import StoredTensor, tensors_in
from engine.store import tensor_file
from engine.types import ModelError

_OLD_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # of BERT's first days
_FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
# Scales of activations and of key/value caches. They are not read: here each row is quantized when it is computed.
_OTHER_SCALES = (
    "input_scale", "input_scale_inv", "activation_scale", "output_scale",
    "q_scale", "k_scale", "v_scale", "kv_scale", "prob_scale", "input_zero_point", "weight_zero_point",
)  # fmt: skip


class Checkpoint(Protocol):
    """A source of weights."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""

    def read(self, name: str) -> Tensor:
        """One of them, in the dtype it is stored in; not to be written to. Raises ModelError."""

    def on_meta(self, name: str) -> Tensor:
        """Like `read`, on the meta device and without reading a number. Raises ModelError."""

    def in_words(self, name: str) -> str:
        """The tensor's name and file, for messages."""


class SafetensorsCheckpoint:
    """A folder's model.safetensors, or the files that its index names. Each is opened at its first read.

    On a CPU tensors are views of the mapped file.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Raises ModelError where a file is missing or not a safetensors file, and where two tensors have one name."""
        self._reader = reader_for(device)
        self._stored: dict[str, StoredTensor] = {}
        for name, tensor in tensors_in(folder).items():
            current = _current_name(name)
            first = self._stored.setdefault(current, tensor)
            if first is not tensor:
                raise ModelError(f"the weights {first} and {tensor} are both read as {current!r}; leave out one")
        self.names = frozenset(self._stored)

    def read(self, name: str) -> Tensor:
        stored = self._find(name)
        return self._reader.read(stored.file, stored.name)

    def on_meta(self, name: str) -> Tensor:
        return tensor_file.on_meta(self._find(name))

    def in_words(self, name: str) -> str:
        return str(self._find(name))

    def _find(self, name: str) -> StoredTensor:
        if name not in self._stored:
            raise ModelError(f"the weights have no tensor {name!r}")
        return self._stored[name]


class DequantizedCheckpoint:
    """Another one's tensors, of which FP8 weights come as float32. Scales are not among the names.

    `read` raises ModelError where FP8 has no scale, something else has one, or one does not fit its weight; `on_meta`
    raises the same, but can't see whether scales are finite.
    """

    def __init__(self, checkpoint: Checkpoint, stored: StoredFp8) -> None:
        self._checkpoint = checkpoint
        self._stored = stored
        hidden = (*stored.scale_names, *_OTHER_SCALES)
        self.names = frozenset(name for name in checkpoint.names if name.rpartition(".")[2] not in hidden)

    def read(self, name: str) -> Tensor:
        return self._read(name, self._checkpoint.read)

    def on_meta(self, name: str) -> Tensor:
        return self._read(name, self._checkpoint.on_meta)

    def in_words(self, name: str) -> str:
        return self._checkpoint.in_words(name)

    def _read(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        tensor = read(name)
        scale_name = self._scale_name(name)
        if tensor.dtype not in _FP8:
            if scale_name is not None:
                raise _unreadable(
                    f"the tensor {self.in_words(name)} has a scale, but is stored as {tensor.dtype}, which is not FP8"
                )
            return tensor
        if scale_name is None:
            raise _unreadable(f"the tensor {self.in_words(name)} is stored as FP8, and its scale is missing")
        scale = read(scale_name)
        if not scale.dtype.is_floating_point or not (scale.is_meta or scale.float().isfinite().all()):
            raise _unreadable(
                f"the tensor {self.in_words(scale_name)} holds scales that are not finite floating-point numbers"
            )
        spread = _spread(scale.float(), tensor.shape, self._stored)
        if spread is None:
            raise _unreadable(
                f"the tensor {self.in_words(scale_name)} of shape {list(scale.shape)} does not fit a weight of "
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


def _current_name(stored: str) -> str:
    """The name that transformers gives it."""
    for old, new in _OLD_ENDINGS.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored
