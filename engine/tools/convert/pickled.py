"""Tensors out of a pickle, and nothing else. The only file in which torch.load is called.

weights_only has an unpickler of torch's own make tensors and plain containers, and refuse every other name in the
file. What that leaves to a hostile file is to be far larger than it looks, which is checked here and limited by the
process (engine/tools/convert/isolation.py).
"""

import zipfile
from pathlib import Path
from typing import Any

import torch

from engine.types import ModelError

_ZIP = b"PK\x03\x04"
_MAX_PICKLE = 64 << 20  # bytes of the part that is not tensors: 100,000 tensors take some 20 MB
# As safetensors has them.
_DTYPES = frozenset(
    (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
)


def load(file: Path, name: str) -> dict[str, torch.Tensor]:
    """Its tensors by name: on the CPU, strided, mapped from the file where its format allows. `name` is for errors.

    Raises ModelError with one line, which repeats nothing of what is in the file.
    """
    with file.open("rb") as opened:
        is_zip = opened.read(len(_ZIP)) == _ZIP  # as torch tells the two formats apart; the older can't be mapped
    if is_zip:
        _check_archive(file, name)
    try:
        value = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:
        raise ModelError(f"{name} {_why(error)}") from error
    return _checked(value, name)


def _check_archive(file: Path, name: str) -> None:
    """That nothing in it is larger than it looks: torch stores each part as it is, once.

    Raises ModelError.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise ModelError(f"{name} is damaged or was cut short") from error
    if any(part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size for part in parts):
        raise ModelError(f"{name} is refused: it is compressed, which torch.save never does")
    if sum(part.file_size for part in parts) > file.stat().st_size:
        raise ModelError(f"{name} is refused: its parts overlap")
    if any(part.file_size > _MAX_PICKLE for part in parts if part.filename.endswith(".pkl")):
        raise ModelError(f"{name} is refused: what it holds beside tensors is over {_MAX_PICKLE >> 20} MiB")


def _why(error: Exception) -> str:
    kind = type(error).__name__
    if kind == "UnpicklingError":
        return "is refused: it holds more than tensors, and reading that could run code"
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return "is refused: it takes far more memory than a file of its size should"
    return f"is not a file of weights that torch can read without running code ({kind})"


def _checked(value: Any, name: str) -> dict[str, torch.Tensor]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ModelError(f"{name} is refused: it does not hold tensors by name")
    if not all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in value.values()):
        raise ModelError(f"{name} is refused: not all that it holds are tensors")
    if not all(_is_plain(tensor) for tensor in value.values()):
        raise ModelError(f"{name} is refused: it has a tensor of a kind that safetensors can't hold")
    return {key: tensor.detach() for key, tensor in value.items()}


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.dtype in _DTYPES
