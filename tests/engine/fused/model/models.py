"""Fused models out of folders, run on the CPU by the ops' meaning in torch, over inputs with room to spare.

What stands in padding is poisoned, so that a row that took something of it would be NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from engine.fused.adapters import ADAPTERS
from engine.fused.checkpoint import Checkpoint, SafetensorsCheckpoint
from engine.fused.model.forwards import Blocks, FusedForward, Weights, forward_of
from engine.fused.model.ops import Inputs, Tiles
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import LayerSpec, Spec
from engine.fused.packing import pooled_tile_table, tile_table
from engine.fused.weights import FusedWeights
from engine.model.model_folder import read
from engine.rows.shared_prefixes import unique_tokens
from engine.rows.with_numpy import position_ids
from engine.types import Batch
from tests.engine.tiny_models import Reference, arbitrary, batch, config_of

CPU = torch.device("cpu")
NUM_POSITIONS = 64  # what the tiny models have
BLOCK = 16  # queries a tile: few, so that longer sequences have several
COMPOSITIONS = [(7,), (5, 17, 1, 30, 9), (1, 1, 1), (40, 2)]  # lengths of the sequences of a batch

_TEMPLATE, _QUERY, _OTHER_QUERY, _OTHER, *_DOCUMENTS = arbitrary([20, 9, 5, 6, 3, 14, 1, 30])
# Sequences that begin alike: a chain, another query, the beginning of the one before, itself once more, itself and a
# token more, and others that have one token in common.
BEGIN_ALIKE = [
    _TEMPLATE + _QUERY + _DOCUMENTS[0],
    _TEMPLATE + _QUERY + _DOCUMENTS[1],
    _TEMPLATE + _QUERY + _DOCUMENTS[1][:4] + _DOCUMENTS[2],
    _TEMPLATE + _OTHER_QUERY + _DOCUMENTS[3],
    _TEMPLATE + _OTHER_QUERY,
    _TEMPLATE + _OTHER_QUERY,
    _TEMPLATE + _OTHER_QUERY + _DOCUMENTS[2],
    _OTHER,
    [_OTHER[0], *_DOCUMENTS[0]],
    [_OTHER[0]],
]
NUM_ALIKE = [0, 29, 33, 20, 24, 24, 25, 0, 1, 0]  # tokens that each shares with the one before

SPEC = Spec(
    architecture="qwen3",
    family="llama",
    hidden_size=1024,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=100,
    activation="silu",
    is_gated=True,
    norm="rms",
    norm_eps=1e-6,
    is_causal=True,
    scaling=1.0,
    layers=(LayerSpec(), LayerSpec()),
)


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint in memory."""

    tensors: dict[str, Tensor]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def on_meta(self, name: str) -> Tensor:
        return self.tensors[name].to("meta")

    def in_words(self, name: str) -> str:
        return repr(name)


@dataclass(frozen=True, slots=True)
class Fused:
    """A model, and what is needed to run it."""

    spec: Spec
    weights: Weights
    forward: FusedForward
    padding_idx: int | None

    def token_rows(self, sequences: Sequence[Sequence[int]], **parts: Sequence[int]) -> NDArray[np.float32]:
        """float32 [T, h], those of padding left out. parts: of the batch."""
        inputs = inputs_of(batch(sequences, **parts), padding_idx=self.padding_idx)
        with torch.inference_mode():
            rows = self.forward(inputs, is_pruned=False)
            if inputs.places is not None:
                rows = ReferenceOps().gather(rows, inputs.places)
        return np.asarray(rows[: sum(map(len, sequences))].numpy(), np.float32)

    def pooled(self, sequences: Sequence[Sequence[int]], pooling: str, **parts: Sequence[int]) -> NDArray[np.float32]:
        """float32 [B, h] of the pruned forward; "cls" or "last"."""
        inputs = inputs_of(batch(sequences, **parts), padding_idx=self.padding_idx, pooling=pooling)
        with torch.inference_mode():
            rows = self.forward(inputs, is_pruned=True)
        return np.asarray(rows[: len(sequences)].numpy(), np.float32)


def save(family: str | PretrainedConfig, folder: Path) -> Path:
    """A tiny model, its biases and norms' weights arbitrary too, which transformers would make all alike."""
    torch.manual_seed(0)
    config = config_of(family) if isinstance(family, str) else family
    model: PreTrainedModel = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)
    return folder


def load_fused(folder: Path, checkpoint: Checkpoint | None = None) -> Fused:
    """A folder's model in float32; word 0, which is that of padding, is poisoned."""
    source = source_of(folder, checkpoint)
    weights = source.weights()
    weights.tensors["words"][0] = torch.nan
    forward = forward_of(Blocks(source.spec, weights, ReferenceOps()))
    return Fused(source.spec, weights, forward, read(folder).padding_idx)


def check(fused: Fused, folder: Path, compositions: Sequence[tuple[int, ...]] = COMPOSITIONS) -> None:
    """Its rows are transformers', which computes each sequence alone, by the implementation that knows softcap. Where
    tokens see none behind them, also if sequences share what they begin with."""
    reference = Reference(folder, attn_implementation="eager")
    batches: list[tuple[list[list[int]], dict[str, list[int]]]] = [(arbitrary(each), {}) for each in compositions]
    if fused.spec.is_causal:
        batches.append((BEGIN_ALIKE, {"shared": NUM_ALIKE}))
    for sequences, parts in batches:
        rows = [reference.token_rows(sequence) for sequence in sequences]
        assert_close(fused.token_rows(sequences, **parts), np.concatenate(rows))
        for pooling, place in (("cls", 0), ("last", -1)):
            assert_close(fused.pooled(sequences, pooling, **parts), np.stack([own[place] for own in rows]))


def assert_close(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Row by row, in parts of the largest number of the row."""
    assert actual.shape == expected.shape
    difference = np.abs(actual - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert difference.max() <= 1e-5  # NaN is not


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
    starts, types = packed.cu_seqlens, packed.token_type_ids
    pooled = starts[:-1] if pooling == "cls" else starts[1:] - 1
    tiles, pooled_tiles = tile_table(starts, block=BLOCK, shared=packed.shared), pooled_tile_table(starts, pooled)
    unique = unique_tokens(packed)
    computed = slice(None) if unique is None else unique.first
    return Inputs(
        token_ids=_int32(packed.token_ids[computed], num_padding_tokens),
        positions=_int32(position_ids(packed, padding_idx)[computed], num_padding_tokens),
        token_type_ids=None if types is None else _int32(types[computed], num_padding_tokens),
        cu_seqlens=_int32(np.append(starts, [packed.num_tokens] * num_padding_sequences)),
        pooled=_int32(pooled if unique is None else unique.places[pooled], num_padding_sequences),
        tiles=Tiles(_int32(np.pad(tiles, ((0, 1), (0, 0)))), BLOCK),
        pooled_tiles=Tiles(_int32(np.pad(pooled_tiles, ((0, num_padding_sequences), (0, 0)))), BLOCK),
        places=None if unique is None else _int32(np.append(unique.places, [-1] * num_padding_tokens)),
    )


def _int32(values: NDArray[Any], num_zeros: int = 0) -> Tensor:
    return torch.from_numpy(np.append(values, np.zeros(num_zeros)) if num_zeros else values).to(torch.int32)
