"""Opens a model's folder: configuration, adapter, weights, and whether they fit the GPU. Reads no weights.

Imports transformers, so a start from the cache of quantized models does without this module.
"""

from dataclasses import dataclass

import torch

from engine.fused.adapters import ADAPTERS
from engine.fused.checkpoint.fuse import FusedWeights
from engine.fused.checkpoint.tensors import Checkpoint, DequantizedCheckpoint, SafetensorsCheckpoint
from engine.fused.choices import Choices
from engine.fused.model.ops import MAX_HEAD_DIM, MAX_WIDTH
from engine.fused.model.spec import Spec
from engine.model import quantization
from engine.model.weights import Weights, weights_of
from engine.transformers.configuration import read_config
from engine.types import DeviceTrouble, ModelError

_RESERVE = 0.75e9  # bytes: kernels, workspaces of libraries, recorded graphs, rows on their way out
_NUM_WORKING_SETS = 2  # one of what is computed call by call, one that the graphs share


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


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one GPU."""

    free: int  # bytes
    total: int
    device: str  # "cuda:0", …
    share: float = 1.0  # of the total: what this process may take

    @property
    def available(self) -> int:
        """Bytes."""
        return min(self.free, int(self.share * self.total))

    def __str__(self) -> str:
        words = f"{self.device} has {self.free / 1e9:.1f} GB free of {self.total / 1e9:.1f}"
        return f"{words}, and the engine's share is {self.share:.3g} of it" if self.share < 1.0 else words


def check_memory(spec: Spec, weights: Weights, *, itemsize: int, max_seqlen: int, memory: Memory) -> None:
    """Raises DeviceTrouble where the weights, and a batch of one sequence of the longest kind, will not fit.

    itemsize: bytes of a number in the compute dtype.
    """
    weight_bytes = itemsize * sum(weights.num_parameters.values()) + _RESERVE
    token_bytes = _NUM_WORKING_SETS * itemsize * numbers_per_token(spec)
    needed = weight_bytes + token_bytes * max_seqlen
    if needed <= memory.available:
        return
    fitting = int((memory.available - weight_bytes) // token_bytes)
    enlarge = "raise --gpu-memory-share, " if memory.available < memory.free else ""
    if fitting < 1:
        raise DeviceTrouble(
            f"the model needs {needed / 1e9:.1f} GB of GPU memory, and {memory}: "
            f"{enlarge}free some of it, or serve the model on a larger GPU"
        )
    raise DeviceTrouble(
        f"with sequences of {max_seqlen} tokens the model needs {needed / 1e9:.1f} GB of GPU memory, and {memory}: "
        f"{enlarge}--max-input-length {fitting} fits"
    )


def numbers_per_token(spec: Spec) -> int:
    """Numbers of the compute dtype that a token takes at the point where a layer holds most."""
    attention = 2 * spec.q_size + 2 * spec.kv_size + spec.hidden_size
    mlp = (3 if spec.is_gated else 2) * spec.intermediate_size + spec.hidden_size
    return 2 * spec.hidden_size + max(attention, mlp)  # the sum so far and its norm are held beside either
