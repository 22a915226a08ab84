"""Safetensors files, read and written a tensor at a time. Says where in a file each tensor is. Knows no model.

The library would hold all that it writes in memory, and does not say where in a file a tensor is. The format is
described in engine.model.weights.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.model.weights import StoredTensor, header_of
from engine.types import ModelError

_ALIGNMENT = 8  # bytes, of the first tensor
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes of a tensor in a file, and what they are."""

    begin: int  # bytes from the beginning of the file
    num_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Described(Protocol):
    """A tensor, or a description of one."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class NewHeader:
    """The header of a new file, and where its tensors are."""

    content: bytes  # all before the tensors
    begins: dict[str, int]  # of each tensor, in the file's order: bytes from the beginning of the file
    num_bytes: int  # of the whole file


def byte_ranges(file: Path) -> dict[str, ByteRange]:
    """Ranges by name, each within the file and of the right size. Tensors of a dtype that torch lacks are left out.
    Raises OSError, and ValueError or TypeError if it is not a safetensors file."""
    header, size = header_of(file), file.stat().st_size
    try:
        known = {name: tensor for name, tensor in header.tensors.items() if tensor["dtype"] in _DTYPES}
        found = {name: _byte_range(tensor, header.end) for name, tensor in known.items()}
    except (KeyError, TypeError) as error:
        raise ValueError("its header is not a safetensors header") from error
    if any(each.begin + each.num_bytes > size for each in found.values()):
        raise ValueError("it is cut short")
    return found


def on_meta(stored: StoredTensor) -> Tensor:
    """A tensor of this dtype and shape on the meta device, which holds no numbers. Raises ModelError for other dtypes
    than torch's."""
    if stored.dtype not in _DTYPES:
        raise ModelError(f"the tensor {stored} is stored as {stored.dtype}; take the model's plain weights")
    return torch.empty(stored.shape, dtype=_DTYPES[stored.dtype], device="meta")


def new_header(tensors: Mapping[str, Described]) -> NewHeader:
    """The header of a new file with these tensors by name."""
    # Large numbers first: so each one is at a multiple of its size, which programs that map the file need.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in ordered:
        dtype, shape = tensors[name].dtype, list(tensors[name].shape)
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    encoded = json.dumps(entries, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    content = len(encoded).to_bytes(8, "little") + encoded
    begins = {name: len(content) + entries[name]["data_offsets"][0] for name in ordered}
    return NewHeader(content, begins, len(content) + end)


def write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """A new file. Tensors on a GPU are copied to the host one at a time. Raises OSError."""
    header = new_header(tensors)
    with file.open("xb", buffering=0) as opened:
        _write_all(opened, header.content)
        for name in header.begins:
            _write_all(opened, bytes_of(tensors[name].detach().contiguous().cpu()).numpy())


def bytes_of(tensor: Tensor) -> Tensor:
    """uint8 [bytes] of a contiguous tensor; shares its memory."""
    return tensor.reshape(-1).view(torch.uint8)


def _write_all(opened: Any, content: Any) -> None:
    """The system may take less than all of it at a time, 2 GiB at most."""
    rest = memoryview(content)
    while rest:
        rest = rest[opened.write(rest) :]


def _byte_range(tensor: dict[str, Any], header_end: int) -> ByteRange:
    """A tensor's range, by its entry in the header. Raises ValueError where its numbers contradict each other, KeyError
    or TypeError where they are not numbers."""
    (begin, end), dtype, shape = tensor["data_offsets"], _DTYPES[tensor["dtype"]], tuple(tensor["shape"])
    if not all(isinstance(number, int) and number >= 0 for number in (begin, *shape)):
        raise TypeError("not a size")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError("a tensor's size does not match its shape")
    return ByteRange(header_end + begin, end - begin, dtype, shape)
