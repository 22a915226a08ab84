"""Safetensors files, read and written a tensor at a time: where each one lies, and a file of some. Knows no model.

The library would hold all that it writes in the host's memory, and does not tell where in a file a tensor is. The
format is in engine.model.weights.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.model.weights import header_of

_ALIGNMENT = 8  # bytes, of the first tensor
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies."""

    begin: int  # bytes from the beginning of the file
    num_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def places(file: Path) -> dict[str, Place]:
    """By name; every one is within the file and of the right size. Those of a dtype that torch lacks are left out.

    Raises OSError, and ValueError or TypeError for what is no such file.
    """
    header, size = header_of(file), file.stat().st_size
    try:
        known = {name: tensor for name, tensor in header.tensors.items() if tensor["dtype"] in _DTYPES}
        found = {name: _place(tensor, header.end) for name, tensor in known.items()}
    except (KeyError, TypeError) as error:
        raise ValueError("its header is not one of safetensors") from error
    if any(place.begin + place.num_bytes > size for place in found.values()):
        raise ValueError("it is cut short")
    return found


def write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """A new file. Of what lies on a GPU, the host holds a tensor at a time. Raises OSError."""
    # Large numbers first: so each one lies at a multiple of its size, which whoever maps the file needs.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with file.open("xb", buffering=0) as opened:
        _write_all(opened, len(encoded).to_bytes(8, "little") + encoded)
        for _, tensor in ordered:
            _write_all(opened, bytes_of(tensor.detach().contiguous().cpu()).numpy())


def bytes_of(tensor: Tensor) -> Tensor:
    """uint8 [bytes] of a contiguous tensor; shares its memory."""
    return tensor.reshape(-1).view(torch.uint8)


def _write_all(opened: Any, content: Any) -> None:
    """The system may take less than all of it at a time, 2 GiB at most."""
    rest = memoryview(content)
    while rest:
        rest = rest[opened.write(rest) :]


def _place(tensor: dict[str, Any], header_end: int) -> Place:
    """Raises ValueError where its numbers contradict each other, KeyError and TypeError where they are no such ones."""
    (begin, end), dtype, shape = tensor["data_offsets"], _DTYPES[tensor["dtype"]], tuple(tensor["shape"])
    if not all(isinstance(number, int) and number >= 0 for number in (begin, *shape)):
        raise TypeError("not a size")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("a tensor's size is not that of its shape")
    return Place(header_end + begin, end - begin, dtype, shape)
