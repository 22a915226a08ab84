"""The tensors of small modules out of safetensors files, with numpy alone. See engine.weights for the format."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.head.steps import Dense, LayerNorm, Normalize, Shapes, Step
from engine.types import ModelError
from engine.weights import header_of

Arrays = dict[str, NDArray[np.float32]]  # of a module, by name

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def weights_files(folder: Path, steps: Iterable[Step]) -> list[Path]:
    """Where the tensors of these steps are; one may have none."""
    return [_file(folder, step) for step in steps if not isinstance(step, Normalize)]


def read_arrays(folder: Path, steps: Sequence[Step]) -> list[Arrays]:
    """For each step, what it computes with. Raises ModelError where a file has not what its config.json says."""
    return [{} if isinstance(step, Normalize) else _read(_file(folder, step), step.shapes) for step in steps]


def _file(folder: Path, step: Dense | LayerNorm) -> Path:
    return folder / step.folder / "model.safetensors"


def _read(file: Path, shapes: Shapes) -> Arrays:
    try:
        header = header_of(file)
        _check(file, {name: tuple(tensor["shape"]) for name, tensor in header.tensors.items()}, shapes)
        content = memoryview(file.read_bytes())[header.end :]
        found = {name: _array(content, header.tensors[name]) for name in shapes}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{file} can't be read as a safetensors file") from error
    wrong = [name for name, array in found.items() if not np.isfinite(array).all()]
    if wrong:
        raise ModelError(f"{file}: {wrong[0]!r} is not finite")
    return found


def _check(file: Path, found: Shapes, wanted: Shapes) -> None:
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        what = f"lacks the tensor {missing[0]!r}" if missing else f"has a tensor {unknown[0]!r} too many"
        raise ModelError(f"{file} {what}, by the config.json beside it")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ModelError(f"{file}: {name!r} is {found[name]}, by the config.json beside it {shape}")


def _array(content: memoryview, tensor: dict[str, Any]) -> NDArray[np.float32]:
    """Raises ValueError where its bytes are not as many as its shape says, KeyError for another dtype."""
    begin, end = tensor["data_offsets"]
    if not 0 <= begin <= end <= len(content):
        raise ValueError("it is cut short")
    stored = np.frombuffer(content[begin:end], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    if tensor["dtype"] == "BF16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
