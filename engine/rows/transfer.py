"""A batch's arrays on their way to where the model is. Knows nothing of what they mean."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(values: NDArray[Any], device: torch.device, *, dtype: torch.dtype = torch.int64) -> Tensor:
    """Copied: a batch's arrays are views of what was received, and may be read-only.

    To a GPU the copy is only begun, behind what was begun before; nothing waits for it here.
    """
    tensor = torch.tensor(values, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
