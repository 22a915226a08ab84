"""The ranges that rows as int8 and uint8 are cut into: from --int8-ranges, or from a file in the model's folder.

Two rows, as sentence-transformers' `quantize_embeddings` takes them: the lowest and the highest number of each
dimension in the embeddings of usual texts.
"""

import codecs
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.types import ModelError
from server.settings.flag import SettingsError
from wire.placeholder import placeholder

OWN_FILES = ("int8_ranges.npy", "int8_ranges.json")  # in the model's folder
_MAX_BYTES = 4 << 20  # far more than the numbers of any model


@dataclass(frozen=True, slots=True)
class Int8Ranges:
    """Where they are from, and what they are."""

    source: str  # the flag, or the file in the model's folder
    numbers: bytes  # float32 [2, dimensions], little-endian


def find(file: str | None, folder: Path, dimensions: int) -> Int8Ranges | None:
    """The flag's file, else the model's own, else None. Raises SettingsError and ModelError."""
    if file is not None:
        try:
            return Int8Ranges("--int8-ranges", _read(Path(file), dimensions))
        except ValueError as error:
            raise SettingsError(f"--int8-ranges: {error}") from None
    for name in OWN_FILES:
        if (folder / name).exists():
            try:
                return Int8Ranges(name, _read(folder / name, dimensions))
            except ValueError as error:
                raise ModelError(f"{name}: {error}") from None
    return None


def _read(file: Path, dimensions: int) -> bytes:
    """Raises ValueError with what is wrong."""
    ranges = _numbers(file)
    if ranges.shape != (2, dimensions):
        raise ValueError(f"must have 2 rows of {dimensions} numbers, as wide as rows without `dimensions`")
    if not np.isfinite(ranges).all() or (ranges[0] > ranges[1]).any():
        raise ValueError("must have the lowest numbers in the first row, and the highest in the second")
    return ranges.astype("<f4").tobytes()


def _numbers(file: Path) -> NDArray[np.float32]:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise TypeError
        if file.suffix == ".json":
            content = file.read_bytes().removeprefix(codecs.BOM_UTF8)
            return np.array(msgspec.json.decode(content, type=list[list[float]]), np.float32)
        return np.asarray(np.load(file, allow_pickle=False)).astype(np.float32)
    except OSError as error:
        raise ValueError(f"can't be read ({error.strerror})") from None
    except (msgspec.DecodeError, ValueError, TypeError, EOFError):
        wrong = "must be an array in a .npy file, or a list of two lists in a .json file"
        raise ValueError(placeholder(file) or wrong) from None
