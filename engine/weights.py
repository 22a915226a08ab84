"""How large a model's weights are, from the headers of its safetensors files. Reads no weight, and needs no library.

A file begins with the length of its header (u64, little-endian) and the header, a JSON object: name of a tensor ->
{"dtype": …, "shape": [...], "data_offsets": [begin, end]} (https://huggingface.co/docs/safetensors).
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from engine.model_json import object_in, read_object
from engine.types import ModelError

_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # bytes; as the safetensors library has it


@dataclass(frozen=True, slots=True)
class Weights:
    """Of all files together."""

    num_bytes: int
    num_parameters: dict[str, int]  # by dtype, in safetensors' spelling: F32, BF16, …


def weights_of(folder: Path) -> Weights:
    """Raises ModelError where a file is not what it should be."""
    num_bytes, num_parameters = 0, Counter[str]()
    for file in _files(folder):
        try:
            for tensor in _header(file).values():
                begin, end = tensor["data_offsets"]
                num_bytes += end - begin
                num_parameters[str(tensor["dtype"])] += math.prod(tensor["shape"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{file} is not a safetensors file") from error
    return Weights(num_bytes, dict(num_parameters))


def _files(folder: Path) -> list[Path]:
    if not (folder / _INDEX).is_file() or (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    names = {str(name) for name in object_in(read_object(folder / _INDEX), "weight_map").values()}
    return [folder / name for name in sorted(names)]


def _header(file: Path) -> dict[str, dict[str, list[int]]]:
    """Tensors by name."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > _MAX_HEADER:
            raise ValueError("no header is so long")
        header: dict[str, dict[str, list[int]]] = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    return header
