"""Where each tensor of a new safetensors file will lie, known before any of it is computed. Reads headers alone.

So a file can be written piece by piece in any order, and a run that takes up another's work writes to the same places.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.model.weights import header_of
from engine.store.tensor_file import Place, places
from engine.tools.quantize.selection import BLOCK, Stored

_ALIGNMENT = 8  # bytes, of the first tensor
_FP8, _SCALE = "F8_E4M3", "F32"
_NUM_BYTES = {_FP8: 1, _SCALE: 4}


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the model as it is."""

    file: Path
    places: dict[str, Place]  # by tensor
    stored: dict[str, Stored]  # the same tensors


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, and what becomes of it."""

    name: str
    source: Place
    begin: int  # bytes from the beginning of the new file
    scales_begin: int | None  # the same of its scales; None = it is copied


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one new file."""

    head: bytes  # all that stands before the tensors
    pieces: tuple[Piece, ...]
    num_bytes: int  # of the file
    tensors: tuple[str, ...]  # names of all that it has


def source_of(file: Path) -> Source:
    """Raises OSError, and ValueError or TypeError for what is no safetensors file."""
    found = places(file)
    dtypes = {name: tensor["dtype"] for name, tensor in header_of(file).tensors.items() if name in found}
    return Source(file, found, {name: Stored(dtypes[name], place.shape) for name, place in found.items()})


def scale_name(weight: str) -> str:
    """Of the scales that this weight is to be multiplied by; "inv" is the format's word."""
    return f"{weight}_scale_inv"


def layout(source: Source, quantized: frozenset[str]) -> Layout:
    """The new file of this one."""
    new = dict(_new_tensors(source, quantized))
    # Large numbers first: so each one lies at a multiple of its size, which whoever maps the file needs.
    ordered = sorted(new, key=lambda name: (-_item_bytes(new[name], source, name), name))
    begins: dict[str, int] = {}
    entries, end = {}, 0
    for name in ordered:
        begin, end = end, end + math.prod(new[name].shape) * _item_bytes(new[name], source, name)
        begins[name] = begin
        entries[name] = {"dtype": new[name].dtype, "shape": list(new[name].shape), "data_offsets": [begin, end]}
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    head = len(encoded).to_bytes(8, "little") + encoded
    pieces = tuple(
        Piece(
            name,
            source.places[name],
            len(head) + begins[name],
            len(head) + begins[scale_name(name)] if name in quantized else None,
        )
        for name in ordered
        if name in source.places
    )
    return Layout(head, pieces, len(head) + end, tuple(ordered))


def _new_tensors(source: Source, quantized: frozenset[str]) -> Iterator[tuple[str, Stored]]:
    for name, stored in source.stored.items():
        if name not in quantized:
            yield name, stored
            continue
        num_rows, num_columns = stored.shape
        yield name, Stored(_FP8, stored.shape)
        yield scale_name(name), Stored(_SCALE, (num_rows // BLOCK, num_columns // BLOCK))


def _item_bytes(tensor: Stored, source: Source, name: str) -> int:
    return _NUM_BYTES.get(tensor.dtype) or source.places[name].dtype.itemsize
