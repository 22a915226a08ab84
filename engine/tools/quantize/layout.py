"""Where each tensor of a new safetensors file will be, known before any of it is computed. Opens no file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.store.tensor_file import Described, NewHeader, Place, new_header
from engine.tools.quantize.selection import BLOCK


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the model as it is."""

    file: Path
    places: dict[str, Place]  # by tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, and what becomes of it."""

    name: str
    source: Place
    begin: int  # bytes from the beginning of the new file
    scales_begin: int | None  # the same of its scales; None = it is copied


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one new file."""

    header: NewHeader
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class _New:
    """A tensor that the old file does not have."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def scale_name(weight: str) -> str:
    """The name of the scales that multiply this weight; "inv" is the format's word."""
    return f"{weight}_scale_inv"


def layout(source: Source, quantized: frozenset[str]) -> Layout:
    """The new file of this one."""
    header = new_header(dict(_new_tensors(source, quantized)))
    pieces = tuple(
        Piece(name, source.places[name], begin, header.begins[scale_name(name)] if name in quantized else None)
        for name, begin in header.begins.items()
        if name in source.places
    )
    return Layout(header, pieces)


def _new_tensors(source: Source, quantized: frozenset[str]) -> Iterator[tuple[str, Described]]:
    for name, place in source.places.items():
        if name not in quantized:
            yield name, place
            continue
        num_rows, num_columns = place.shape
        yield name, _New(torch.float8_e4m3fn, place.shape)
        yield scale_name(name), _New(torch.float32, (num_rows // BLOCK, num_columns // BLOCK))
