"""Reads tensors from a pickle and writes them as safetensors. The only file that calls torch.load.

Only the converting process imports it. With weights_only, torch's own unpickler makes tensors and plain containers, and
refuses every other name in the file. A hostile file can still be far larger than it looks: this file checks that, and
engine/convert/process.py limits the process.

In the new files no tensor shares memory with another, each is contiguous, and large sets are split into shards.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.types import ModelError

_ZIP = b"PK\x03\x04"
_MAX_PICKLE = 64 << 20  # bytes of the part that is not tensors: 100,000 tensors take about 20 MB
_INDENT = 2
_READ_WRITE = 0o666
# Those of safetensors.
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
    """The tensors of a file by name: on the CPU, strided, mapped from the file where its format allows. `name` is what
    errors call the file. Raises ModelError with one line, which repeats nothing from the file."""
    with file.open("rb") as opened:
        is_zip = opened.read(len(_ZIP)) == _ZIP  # torch's own test; the older format can't be mapped
    if is_zip:
        _check_archive(file, name)
    try:
        value = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:
        raise ModelError(f"{name} {_why(error)}") from error
    return _checked(value, name)


def _check_archive(file: Path, name: str) -> None:
    """Check that nothing in the file is larger than it looks: torch stores each part once, uncompressed. Raises
    ModelError."""
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
        raise ModelError(f"{name} is refused: it holds more than {_MAX_PICKLE >> 20} MiB beside tensors")


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


def num_bytes(tensors: dict[str, torch.Tensor]) -> int:
    """Their size in files. Tied tensors count once for each name."""
    return sum(tensor.nbytes for tensor in tensors.values())


def write(tensors: dict[str, torch.Tensor], stem: Path, *, max_shard_bytes: int) -> list[str]:
    """Write <stem>.safetensors or, if that would be larger than max_shard_bytes, shards and their index. Returns the
    files' names.

    dtypes stay as they are. Formats: https://huggingface.co/docs/safetensors; the index is that of transformers.
    """
    shards = list(_split(_apart(tensors), max_shard_bytes))
    if len(shards) == 1:
        _save(shards[0], stem, ".safetensors")
        return [f"{stem.name}.safetensors"]
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        ending = f"-{number:05}-of-{len(shards):05}.safetensors"
        _save(shard, stem, ending)
        weight_map |= dict.fromkeys(shard, stem.name + ending)
    index = {"metadata": {"total_size": num_bytes(tensors)}, "weight_map": weight_map}
    index_name = f"{stem.name}.safetensors.index.json"
    stem.with_name(index_name).write_text(json.dumps(index, indent=_INDENT))
    return [*dict.fromkeys(weight_map.values()), index_name]


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tied tensors become equal copies: safetensors can't say that two names share one tensor, and which name a model's
    class can do without differs by class."""
    storages: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone(memory_format=torch.contiguous_format) if storage in storages else tensor
        storages.add(storage)
    return apart


def _split(tensors: dict[str, torch.Tensor], max_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Shards of the tensors, in their order. A tensor that is too large gets its own shard."""
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _save(shard: dict[str, torch.Tensor], stem: Path, ending: str) -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in shard.items()}
    file = stem.with_name(stem.name + ending)
    save_file(contiguous, file, metadata={"format": "pt"})
    file.chmod(file.parent.stat().st_mode & _READ_WRITE)  # the library lets only this user read it
