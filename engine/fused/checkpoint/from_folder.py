"""Opens a model's folder: configuration, adapter, weights. Imports transformers, so a start from the cache of quantized
models does without this module.
"""

from dataclasses import dataclass

import torch

from engine.fused.adapters import ADAPTERS
from engine.fused.checkpoint.dequantize import DequantizedCheckpoint
from engine.fused.checkpoint.fuse import FusedWeights
from engine.fused.checkpoint.tensors import Checkpoint, SafetensorsCheckpoint
from engine.fused.checks import Memory, check_memory
from engine.fused.choices import Choices
from engine.fused.model.ops import MAX_HEAD_DIM, MAX_WIDTH
from engine.fused.model.spec import Spec
from engine.model import quantization
from engine.model.weights import weights_of
from engine.transformers.configuration import read_config
from engine.types import ModelError


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Where weights are read from."""

    source: FusedWeights
    notes: tuple[str, ...]  # what is to be said of it


def find(chosen: Choices) -> OpenedModel:
    """Raises ModelError where the fused engine does not know the model, and where its weights will not fit."""
    folder = chosen.folder
    adapter = ADAPTERS.get(folder.architecture)
    if adapter is None:
        raise ModelError(
            f"the fused engine does not know the architecture {folder.architecture!r}; --engine transformers may"
        )
    config = read_config(folder)
    stored = quantization.check(folder.path, reads_fp8=True)
    checkpoint: Checkpoint = SafetensorsCheckpoint(folder.path, chosen.device)
    if stored is not None:
        checkpoint = DequantizedCheckpoint(checkpoint, stored)
    source = FusedWeights(
        checkpoint, adapter, config, dtype=chosen.dtype, device=chosen.device, num_positions=folder.max_seqlen
    )
    source.check()
    if chosen.capability is not None:
        _check_sizes(source.spec)
        _check_memory(source, chosen)
    return OpenedModel(source, () if stored is None else (stored.note,))


def _check_sizes(spec: Spec) -> None:
    for name, size, most in (
        ("heads", spec.head_dim, MAX_HEAD_DIM),
        ("rows", max(spec.hidden_size, spec.embedding_size or 0), MAX_WIDTH),
    ):
        if size > most:
            raise ModelError(
                f"the model has {name} of {size} numbers, and the fused engine's kernels take {most}; "
                f"--engine transformers may serve it"
            )


def _check_memory(source: FusedWeights, chosen: Choices) -> None:
    free, total = torch.cuda.mem_get_info(chosen.device)
    check_memory(
        source.spec,
        weights_of(chosen.folder.path),
        itemsize=chosen.dtype.itemsize,
        max_seqlen=chosen.folder.max_seqlen,
        memory=Memory(free, total, str(chosen.device), chosen.memory_share),
    )
