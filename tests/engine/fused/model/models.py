"""Fused models out of folders, run on the CPU by the ops' meaning in torch, over inputs with room to spare.

What stands in padding is poisoned, so that a row that took something of it would be NaN.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from engine.fused.adapters import ADAPTERS
from engine.fused.checkpoint import Checkpoint, SafetensorsCheckpoint
from engine.fused.model.forwards import Blocks, Forward, Weights, forward_of
from engine.fused.model.ops import TILE_FIELDS, Inputs, Tiles
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import Spec
from engine.fused.weights import FusedWeights
from engine.model.model_folder import read
from engine.rows_numpy import position_ids
from engine.types import Batch
from tests.engine import tiny_models
from tests.engine.tiny_models import batch

CPU = torch.device("cpu")
NUM_POSITIONS = 64  # what the tiny models have
BLOCK = 16  # queries a tile: few, so that longer sequences have several
COMPOSITIONS = [(7,), (5, 17, 1, 30, 9), (1, 1, 1), (40, 2)]  # lengths of the sequences of a batch


@dataclass(frozen=True, slots=True)
class Fused:
    """A model, and what is needed to run it."""

    spec: Spec
    weights: Weights
    forward: Forward
    padding_idx: int | None

    def token_rows(
        self, sequences: Sequence[Sequence[int]], token_type_ids: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """float32 [T, h], those of padding left out."""
        inputs = inputs_of(batch(sequences, token_type_ids), padding_idx=self.padding_idx)
        with torch.inference_mode():
            rows = self.forward(inputs, is_pruned=False)
        return np.asarray(rows[: sum(map(len, sequences))].numpy(), np.float32)

    def pooled(self, sequences: Sequence[Sequence[int]], pooling: str) -> NDArray[np.float32]:
        """float32 [B, h] of the pruned forward; "cls" or "last"."""
        inputs = inputs_of(batch(sequences), padding_idx=self.padding_idx, pooling=pooling)
        with torch.inference_mode():
            rows = self.forward(inputs, is_pruned=True)
        return np.asarray(rows[: len(sequences)].numpy(), np.float32)


def save(family: str, folder: Path) -> Path:
    """A tiny model, its biases and norms' weights arbitrary too, which transformers would make all alike."""
    file = tiny_models.save(family, folder) / "model.safetensors"
    numbers = torch.Generator().manual_seed(1)
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if tensor.dim() == 1:
            tensors[name] = tensor + 0.2 * torch.randn(tensor.shape, generator=numbers)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def load_fused(folder: Path, checkpoint: Checkpoint | None = None) -> Fused:
    """A folder's model in float32; word 0, which is that of padding, is poisoned."""
    source = source_of(folder, checkpoint)
    weights = source.weights()
    weights.tensors["words"][0] = torch.nan
    forward = forward_of(Blocks(source.spec, weights, ReferenceOps()))
    return Fused(source.spec, weights, forward, read(folder).padding_idx)


def source_of(
    folder: Path,
    checkpoint: Checkpoint | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> FusedWeights:
    """A folder's weights."""
    config = AutoConfig.from_pretrained(folder)
    adapter = ADAPTERS.get(config.model_type)
    assert adapter is not None
    checkpoint = checkpoint or SafetensorsCheckpoint(folder, device)
    return FusedWeights(checkpoint, adapter, config, dtype=dtype, device=device, num_positions=NUM_POSITIONS)


def inputs_of(
    packed: Batch,
    *,
    padding_idx: int | None = None,
    pooling: str = "cls",
    num_padding_tokens: int = 5,
    num_padding_sequences: int = 2,
) -> Inputs:
    """A packed batch as the device sees it; `pooling` is "cls" or "last"."""
    cu_seqlens = packed.cu_seqlens.tolist()
    bounds = list(itertools.pairwise(cu_seqlens))
    pooled = [start if pooling == "cls" else end - 1 for start, end in bounds]
    tiles = [
        (first, min(BLOCK, end - first), first - start, start, end - start)
        for start, end in bounds
        for first in range(start, end, BLOCK)
    ]
    pooled_tiles = [
        (number, 1, token - start, start, end - start)
        for number, (token, (start, end)) in enumerate(zip(pooled, bounds, strict=True))
    ]
    types = packed.token_type_ids
    return Inputs(
        token_ids=_int32(packed.token_ids, num_padding_tokens),
        positions=_int32(position_ids(packed, padding_idx), num_padding_tokens),
        token_type_ids=None if types is None else _int32(types, num_padding_tokens),
        cu_seqlens=_int32(np.append(packed.cu_seqlens, [packed.num_tokens] * num_padding_sequences)),
        pooled=_int32(np.array(pooled), num_padding_sequences),
        tiles=Tiles(_int32(np.array([*tiles, (0,) * TILE_FIELDS])), BLOCK),
        pooled_tiles=Tiles(_int32(np.array(pooled_tiles + [(0,) * TILE_FIELDS] * num_padding_sequences)), BLOCK),
    )


def _int32(values: NDArray[Any], num_zeros: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.append(values, np.zeros(num_zeros)) if num_zeros else values).to(torch.int32)
