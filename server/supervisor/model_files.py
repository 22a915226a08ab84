"""Finds a model's files and the folder for what is made of them, before any process is started.

Files are fetched where they are not here, and features make other files of those that can't be served, such as weights
that are pickles. The cache folder keeps these and what engines compile; it is made and tried here. So is the file with
the ranges that rows as int8 and uint8 are cut into: the one of --int8-ranges, or the model's own.
"""

import base64
import codecs
import dataclasses
import itertools
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from embedline.progress import Progress
from engine.store import cache
from engine.store.model_source import ResolvedModel, resolve
from engine.types import ModelError
from server.feature import loaded
from server.features.table import FEATURES
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from wire.files import remedy
from wire.placeholder import placeholder

_WRITTEN_TO = "compiled"  # the folder in it that engines make and use
_CACHES = (_WRITTEN_TO, "fused")  # all that engine.store.cache keeps; the folder around them may hold a user's files
_INT8_RANGES_FILES = ("int8_ranges.npy", "int8_ranges.json")  # in the model's folder
_MAX_RANGES_BYTES = 4 << 20  # far more than the numbers of any model

logger = logging.getLogger("embedline.server")


def find_files(
    model: ModelSettings, settings: Settings, *, needs_weights: bool, progress: Progress | None
) -> ResolvedModel:
    """The model's folder. If its weights are pickles, it is the copy in the cache, which is made if it is not there.

    Raises ModelError with one line; without `progress` NotConvertedError, instead of making a copy.
    """
    folder, token = settings.huggingface_hub_cache, settings.hf_token
    cache_dir = Path(folder) if folder else None
    options: dict[str, Any] = {"cache_dir": cache_dir, "token": token, "needs_modules": model.needs_modules}
    found = resolve(model.model_id, model.revision, **options)
    if not needs_weights or model.convert == "never":
        return found
    wanted = (loaded(feature.fetches)(found.path) for feature in FEATURES if feature.fetches)
    if found.source.startswith("hub") and (more := tuple(itertools.chain.from_iterable(wanted))):
        path = resolve(model.model_id, found.revision, more=more, **options).path
        found = dataclasses.replace(found, path=path)
    return without_pickles(found, settings, progress=progress)


def without_pickles(found: ResolvedModel, settings: Settings, *, progress: Progress | None) -> ResolvedModel:
    """The second half of `find_files`, for a folder on this machine: what features make of it."""
    for prepare in (loaded(feature.prepares) for feature in FEATURES if feature.prepares):
        found = prepare(found, settings, progress=progress)
    return found


class NotConvertedError(ModelError):
    """A start would convert this model's weights first, and nothing was to be converted here."""


def cache_folder(asked: str | None, environment: Mapping[str, str]) -> str | None:
    """An absolute path. None if nothing is to be kept, or if the default folder can't be written to.

    Raises SettingsError where the one that was asked for can't be written to.
    """
    if asked == "off":
        return None
    try:
        folder = Path(asked).expanduser() if asked else _default(environment)
    except RuntimeError:
        raise SettingsError("--compiled-cache starts with a home folder that is unknown: give a full path") from None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / _WRITTEN_TO).mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder / _WRITTEN_TO):
            return str(folder.absolute())
    except OSError as error:
        if asked:
            instead = f"{remedy(error)}; off keeps no cache" if remedy(error) else ""
            raise SettingsError(f"--compiled-cache can't be written to: {folder}: {error.strerror}{instead}") from None
        logger.warning("no cache of compiled models: %s: %s%s", folder, error.strerror, remedy(error))
        return None


def remove_leftovers(folder: str | None) -> None:
    """Remove what engines were making when they were killed. `folder`: of `cache_folder`."""
    for each in (Path(folder, name) for name in _CACHES) if folder is not None else ():
        cache.remove_leftovers(each)


def _default(environment: Mapping[str, str]) -> Path:
    """The default folder by the XDG Base Directory Specification: a relative XDG_CACHE_HOME is ignored."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path(environment.get("HOME") or "/", ".cache")) / "embedline"


@dataclass(frozen=True, slots=True)
class Int8Ranges:
    """The ranges: where they are from, and what they are.

    Two rows, as sentence-transformers' `quantize_embeddings` takes them: the lowest and the highest number of each
    dimension in the embeddings of usual texts.
    """

    source: str  # the flag, or the file in the model's folder
    numbers: bytes  # float32 [2, dimensions], little-endian

    def as_json(self) -> dict[str, str]:
        """Both, for frontends."""
        return {"source": self.source, "numbers": base64.b64encode(self.numbers).decode()}


def find_int8_ranges(file: str | None, folder: Path, dimensions: int) -> Int8Ranges | None:
    """The flag's file, else the model's own, else None. Raises SettingsError and ModelError."""
    if file is not None:
        try:
            return Int8Ranges("--int8-ranges", _checked_ranges(Path(file), dimensions))
        except ValueError as error:
            raise SettingsError(f"--int8-ranges: {error}") from None
    for name in _INT8_RANGES_FILES:
        if (folder / name).exists():
            try:
                return Int8Ranges(name, _checked_ranges(folder / name, dimensions))
            except ValueError as error:
                raise ModelError(f"{name}: {error}") from None
    return None


def ranges_of_whole_numbers(dimensions: int) -> Int8Ranges:
    """The ranges of a model that makes whole numbers of its rows: as int8 these stay what they are."""
    numbers = np.array([[-128], [127]], "<f4").repeat(dimensions, axis=1)
    return Int8Ranges("the model's own rounding", numbers.tobytes())


def _checked_ranges(file: Path, dimensions: int) -> bytes:
    """The ranges as bytes. Raises ValueError with what is wrong."""
    ranges = _ranges_in(file)
    if ranges.shape != (2, dimensions):
        raise ValueError(f"must have 2 rows of {dimensions} numbers, as wide as rows without `dimensions`")
    if not np.isfinite(ranges).all() or (ranges[0] > ranges[1]).any():
        raise ValueError("must have the lowest numbers in the first row, and the highest in the second")
    return ranges.astype("<f4").tobytes()


def _ranges_in(file: Path) -> NDArray[np.float32]:
    try:
        if file.stat().st_size > _MAX_RANGES_BYTES:
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
