"""The model as its folder has it: configuration, adapter, checkpoint. Imports transformers, so what starts from a kept
model does without this module."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging

from engine.failures import one_line
from engine.fused import memory
from engine.fused.adapters import registry
from engine.fused.checkpoint.checkpoint import Checkpoint, SafetensorsCheckpoint
from engine.fused.checkpoint.dequantize import DequantizedCheckpoint
from engine.fused.checkpoint.fuse import Source
from engine.fused.choices import Choices
from engine.fused.model.ops import MAX_HEAD_DIM, MAX_WIDTH
from engine.fused.model.spec import Spec
from engine.model import quantization
from engine.model.model_folder import ModelFolder
from engine.model.weights import weights_of
from engine.types import ModelError


@dataclass(frozen=True, slots=True)
class Original:
    """Where weights are read from."""

    source: Source
    notes: tuple[str, ...]  # what is to be said of it


def find(chosen: Choices) -> Original:
    """Raises ModelError where the fused engine does not know the model, and where its weights will not fit."""
    folder = chosen.folder
    adapter = registry.find(folder.architecture)
    if adapter is None:
        raise ModelError(
            f"the fused engine does not know the architecture {folder.architecture!r}; --engine transformers may"
        )
    config = _config(folder)
    stored = quantization.read(folder.path)
    checkpoint: Checkpoint = SafetensorsCheckpoint(folder.path, chosen.device)
    if stored is not None:
        checkpoint = DequantizedCheckpoint(checkpoint, stored)
    source = Source(
        checkpoint, adapter, config, dtype=chosen.dtype, device=chosen.device, num_positions=folder.max_seqlen
    )
    if chosen.capability is not None:
        _check_sizes(source.spec)
        _check_memory(source, chosen)
    return Original(source, () if stored is None else (stored.note,))


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


def _check_memory(source: Source, chosen: Choices) -> None:
    free, total = torch.cuda.mem_get_info(chosen.device)
    memory.check(
        source.spec,
        weights_of(chosen.folder.path),
        itemsize=chosen.dtype.itemsize,
        max_seqlen=chosen.folder.max_seqlen,
        memory=memory.Memory(free, total, str(chosen.device), chosen.memory_share),
    )


def _config(folder: ModelFolder) -> PretrainedConfig:
    try:
        with _quiet():
            config: PretrainedConfig = AutoConfig.from_pretrained(
                folder.path, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # a file can be wrong in more ways than transformers has exceptions for
        raise ModelError(f"transformers can't read {folder.path / 'config.json'}: {one_line(error)}") from error
    return config


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What matters is raised."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
