"""Reads the tensors of small modules from safetensors files, with numpy alone. Format: see engine.model.weights."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from engine.model.steps import Dense, LayerNorm, Normalize, Shapes, Step
from engine.model.weights import StoredTensor, header_of
from engine.types import ModelError

Arrays = dict[str, NDArray[np.float32]]  # of a module, by name

QUERY_WEIGHTS = "weight"  # the tensor of a SparseStaticEmbedding

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def weights_files(folder: Path, steps: Iterable[Step]) -> list[Path]:
    """The files with the tensors of these steps. A Normalize has none."""
    return [_file(folder, step) for step in steps if not isinstance(step, Normalize)]


def read_arrays(folder: Path, steps: Sequence[Step]) -> list[Arrays]:
    """The tensors of each step. Raises ModelError if a file does not match its step."""
    return [{} if isinstance(step, Normalize) else _read(_file(folder, step), step) for step in steps]


def read_query_weights(folder: Path) -> NDArray[np.float32]:
    """The weights [V] of a TokenTable in this folder. Raises ModelError if its file has none."""
    file = folder / "model.safetensors"
    try:
        header = header_of(file)
        with file.open("rb") as content:
            found = _array(content, header.end, header.tensors[QUERY_WEIGHTS])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{file} can't be read as a safetensors file with {QUERY_WEIGHTS!r}") from error
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ModelError(f"{file}: {QUERY_WEIGHTS!r} is not one finite number for each token")
    return found


def read_tensor(stored: StoredTensor) -> NDArray[np.float32]:
    """A tensor of a weights file. Raises ModelError if the file can't be read."""
    try:
        header = header_of(stored.file)
        with stored.file.open("rb") as content:
            return _array(content, header.end, header.tensors[stored.name])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{stored.file} can't be read as a safetensors file") from error


def _file(folder: Path, step: Dense | LayerNorm) -> Path:
    return folder / step.folder if _is_file(step) else folder / step.folder / "model.safetensors"


def _is_file(step: Dense | LayerNorm) -> bool:
    return isinstance(step, Dense) and step.is_file


def _read(file: Path, step: Dense | LayerNorm) -> Arrays:
    try:
        header = header_of(file)
        names = _names(header.tensors, step)
        _check(file, {name: tuple(header.tensors[there]["shape"]) for name, there in names.items()}, step)
        with file.open("rb") as content:
            found = {name: _array(content, header.end, header.tensors[names[name]]) for name in step.shapes}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{file} can't be read as a safetensors file") from error
    wrong = [name for name, array in found.items() if not np.isfinite(array).all()]
    if wrong:
        raise ModelError(f"{file}: {names[wrong[0]]!r} is not finite")
    return found


def _names(tensors: dict[str, Any], step: Dense | LayerNorm) -> dict[str, str]:
    """The step's name of each tensor -> the file's name. A module's file holds only that module."""
    if not _is_file(step):
        return {name: name for name in tensors}
    spelled = {name: (name, name.removeprefix("linear.")) for name in step.shapes}
    return {name: there for name, ways in spelled.items() for there in ways if there in tensors}


def _check(file: Path, found: Shapes, step: Dense | LayerNorm) -> None:
    wanted, by = step.shapes, "" if _is_file(step) else f", by {step.source}"
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        what = f"lacks the tensor {missing[0]!r}" if missing else f"has a tensor {unknown[0]!r} too many"
        raise ModelError(f"{file} {what}{by}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ModelError(f"{file}: {name!r} is {found[name]}, not {shape}{by}")


def _array(content: BinaryIO, start: int, tensor: dict[str, Any]) -> NDArray[np.float32]:
    """Raises ValueError if its size does not match its shape, KeyError for an unknown dtype."""
    begin, end = tensor["data_offsets"]
    if not 0 <= begin <= end <= content.seek(0, os.SEEK_END) - start:
        raise ValueError("it is cut short")
    content.seek(start + begin)
    stored = np.frombuffer(content.read(end - begin), _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    if tensor["dtype"] == "BF16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
