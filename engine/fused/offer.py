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
from engine.model.tasks import Task
from engine.registry import CPU, CUDA
from engine.types import ModelError, OutputKind

if TYPE_CHECKING:
    import torch

_GIVEN = OutputKind.POOLED | OutputKind.TOKENS
_POOLINGS = (("cls",), ("mean",), ("last",))
_TOO_LARGE_FOR_FLOAT16 = ("gemma", "modernbert", "embedding_gemma")  # beginnings of architectures; rows beyond 65504


@dataclass(frozen=True, kw_only=True)
class Options(offer.Options):
    """Options that only this engine reads."""

    is_gated: bool = True  # whether layers that lose too much fidelity stay unquantized


class Offer(offer.Offer):
    """Embeddings on GPUs."""

    def covers(self, folder: ModelFolder) -> Iterator[str]:
        """It knows fewer outputs and architectures than the table."""
        from engine.model.coverage import rows_of

        check_outputs(folder)
        if not any(row.is_fused for row in rows_of(folder)):
            yield f"it does not know the architecture {folder.architecture!r}"


OFFER = Offer(options=Options)


class NotForFused(ModelError):
    """The fused engine would not be right about this model; another may be."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; --engine transformers may serve the model")


def check_outputs(folder: ModelFolder) -> None:
    """Raises ModelError where another output is asked for than a row for each text and token, pooled in a known way."""
    if folder.is_static:
        raise ModelError("the fused engine computes no static embeddings; --engine static does")
    if folder.task is not Task.EMBED or folder.heads:
        what = " and ".join(kind.name or "" for kind in folder.outputs & ~_GIVEN)
        raise NotForFused(f"the fused engine computes embeddings only; this model is for {folder.task} ({what})")
    if folder.tokenizer_folder:
        raise NotForFused(
            f"the fused engine needs the Transformer in the model's own folder, not in {folder.tokenizer_folder!r}"
        )
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
