"""The fused engine before it is loaded: can it serve this model on this device in this dtype?

Reads the folder's JSON files, but neither its architecture's configuration nor its weights. Imports torch only in
`choose`, so the server and `embedline doctor` can ask for the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine import offer
from engine.machine.devices import check_dtype_of_fused, dtype_of_auto, has_bfloat16
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder, read_with
from engine.model.tasks import PooledScores, VocabularyWeights
from engine.registry import CPU, CUDA
from engine.types import ModelError, OutputKind

if TYPE_CHECKING:
    import torch

_POOLINGS = (("cls",), ("mean",), ("last",))
_TOO_LARGE_FOR_FLOAT16 = ("gemma", "modernbert", "embedding_gemma")  # beginnings of architectures; rows beyond 65504


@dataclass(frozen=True, kw_only=True)
class Options(offer.Options):
    """Options that only this engine reads."""

    is_gated: bool = True  # whether layers that lose too much fidelity stay unquantized


class Offer(offer.Offer):
    """Every output on GPUs, of the architectures that it knows."""

    def covers(self, folder: ModelFolder) -> Iterator[str]:
        """It knows fewer architectures than the table."""
        from engine.model.coverage import FUSED_BESIDES, rows_of

        check_outputs(folder)
        if folder.architecture not in FUSED_BESIDES and not any(row.is_fused for row in rows_of(folder)):
            yield f"it does not know the architecture {folder.architecture!r}"


OFFER = Offer(options=Options)


class NotForFused(ModelError):
    """The fused engine would not be right about this model; another may be."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; --engine transformers may serve the model")


def check_outputs(folder: ModelFolder) -> None:
    """Raises ModelError where an output would need more of the folder than the engine can do, whatever its weights."""
    if folder.is_static:
        raise ModelError("the fused engine computes no static embeddings; --engine static does")
    if any(isinstance(head, VocabularyWeights) and head.pooling != "max" for head in folder.heads):
        raise NotForFused("this model adds a word's weights up (pooling sum), and the fused engine takes the largest")
    pools_scores = any(isinstance(head, PooledScores) for head in folder.heads)
    if OutputKind.POOLED not in folder.outputs and not pools_scores:
        return
    if folder.poolings not in _POOLINGS:
        raise ModelError(
            f"the fused engine pools by one of cls, mean and last-token, not by {folder.pooling}; "
            f"--engine transformers does"
        )
    if not folder.include_prompt:
        raise NotForFused(
            "this model leaves the prompt's tokens out of the pooling (include_prompt), which the fused engine can't do"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedConfig:
    """All choices that loading needs to know."""

    folder: ModelFolder
    device: "torch.device"
    capability: tuple[int, int] | None  # of the GPU; None = a CPU
    dtype: "torch.dtype"
    memory_share: float = 1.0  # of the GPU's memory: what this process may take


def choose(options: LoadOptions) -> FusedConfig:
    """The choices for these options. Raises ModelError where the engine can't serve them."""
    device, capability = _device(options.device)
    folder = read_with(options)
    check_outputs(folder)
    return FusedConfig(
        folder=folder,
        device=device,
        capability=capability,
        dtype=_dtype(options.dtype, folder.architecture, capability),
        memory_share=options.memory_share,
    )


def _device(name: str) -> "tuple[torch.device, tuple[int, int] | None]":
    import torch

    kind, _, number = name.partition(":")
    if name == "cpu":
        return torch.device("cpu"), None
    if kind != "cuda" or not (number or "0").isdecimal():
        raise ModelError(f"the fused engine runs on cuda:0, cuda:1, … or cpu, not on {name!r}")
    if not torch.cuda.is_available():
        raise ModelError(f"{name} can't be used: PyTorch finds no CUDA GPU here; --devices cpu serves most models")
    index, there_are = int(number or 0), torch.cuda.device_count()
    if index >= there_are:
        raise ModelError(f"there is no {name}: the GPUs here are numbered from 0 to {there_are - 1}")
    capability = torch.cuda.get_device_capability(index)
    if not has_bfloat16(capability):
        raise ModelError(
            f"the fused engine needs a GPU that computes in bfloat16, and {name} is of compute capability "
            f"{capability[0]}.{capability[1]}; --engine transformers runs there"
        )
    return torch.device("cuda", index), capability


def _dtype(name: str, architecture: str, capability: tuple[int, int] | None) -> "torch.dtype":
    import torch

    check_dtype_of_fused(name, CPU if capability is None else CUDA)
    if name == "float16" and architecture.startswith(_TOO_LARGE_FOR_FLOAT16):
        raise ModelError(f"--dtype float16 can't hold the values that {architecture!r} computes; take --dtype bfloat16")
    dtype: torch.dtype = getattr(torch, dtype_of_auto(capability) if name == "auto" else name)
    return dtype
