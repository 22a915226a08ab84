"""Chooses a model's device and dtype, and checks that its weights fit. Knows nothing of batches."""

from dataclasses import dataclass

import torch

from engine.machine.devices import dtype_of_auto, has_bfloat16
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder
from engine.model.weights import weights_of
from engine.registry import CPU, CUDA
from engine.types import DeviceTrouble, ModelError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Placement:
    """The CPU or one GPU, and the dtype of computing."""

    device: torch.device
    dtype: torch.dtype
    memory_share: float = 1.0  # of the GPU's memory that this process may take

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == CUDA


def place(options: LoadOptions) -> Placement:
    """The placement for the options device, dtype and memory_share. Raises ModelError.

    Makes a GPU the current device of this thread and limits this process to its share of the memory.
    """
    device, dtype = options.device, options.dtype
    if dtype not in ("auto", *_DTYPES):
        raise ModelError(f"--dtype {dtype!r} is not one of auto, {', '.join(_DTYPES)}")
    if device == CPU:
        return Placement(torch.device(device), _DTYPES[dtype_of_auto(None) if dtype == "auto" else dtype])
    capability = _capability(device)
    if dtype == "bfloat16" and not has_bfloat16(capability):
        raise ModelError(f"--dtype bfloat16: {device} can't compute in it; float32 and float16 work")
    torch.cuda.set_device(device)  # otherwise pinning memory would use the first GPU
    torch.backends.cuda.enable_cudnn_sdp(False)  # see docs/decisions/0024-attention-by-our-kernel.md
    if options.memory_share < 1.0:
        torch.cuda.set_per_process_memory_fraction(options.memory_share, torch.device(device))
    named = _DTYPES[dtype_of_auto(capability) if dtype == "auto" else dtype]
    return Placement(torch.device(device), named, options.memory_share)


def _capability(device: str) -> tuple[int, int]:
    kind, _, index = device.partition(":")
    if kind != CUDA or not index.isdecimal():
        raise ModelError(f"the transformers engine runs on cpu or cuda:0, cuda:1, …, not on {device!r}")
    if not torch.cuda.is_available() or int(index) >= torch.cuda.device_count():
        raise ModelError(f"torch {torch.__version__} can't use {device!r}: another build of it may, or a newer driver")
    return torch.cuda.get_device_capability(device)


def check_fits(folder: ModelFolder, placement: Placement) -> None:
    """Raises DeviceTrouble if the weights exceed a GPU's free memory or this process's share of it."""
    if not placement.is_gpu:
        return
    adapters = [adapter.files[1] for adapter in folder.loras]
    num_bytes = sum(weights_of(folder.weights_folder, adapters).num_parameters.values()) * placement.dtype.itemsize
    free, total = torch.cuda.mem_get_info(placement.device)
    if num_bytes > int(placement.memory_share * total) < free:
        raise DeviceTrouble(
            f"the weights take {num_bytes / _GIB:.1f} GiB, and the engine's share of {placement.device} is "
            f"{placement.memory_share:.3g} of its {total / _GIB:.1f} GiB: raise --gpu-memory-share, or serve fewer "
            f"models there"
        )
    if num_bytes > free:
        dtype = str(placement.dtype).removeprefix("torch.")
        smaller = "--dtype float16 takes half, or " if placement.dtype is torch.float32 else ""
        raise DeviceTrouble(
            f"the weights take {num_bytes / _GIB:.1f} GiB in {dtype}, and {placement.device} has {free / _GIB:.1f} of "
            f"its {total / _GIB:.1f} GiB free: {smaller}free some of it, or serve the model by --devices cpu"
        )
