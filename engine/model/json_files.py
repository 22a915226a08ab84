"""Reads a model folder's JSON files and the kinds of values they hold; a wrong one is a ModelError that names it.

Knows nothing of what the values mean.
"""

import json
import os
from pathlib import Path
from typing import Any

from engine.types import ModelError

Json = dict[str, Any]

MAX_DEPTH = 2  # folders that a module may lie in, one within the other
_MAX_BYTES = 1 << 28  # of a file; the largest tokenizers take a tenth of it
_READ = frozenset((".json", ".safetensors", ".jinja", ".metadata"))  # whatever may be read of a model folder


def read(file: Path) -> Any:
    """Any JSON value. Raises ModelError where the file is missing, is not JSON, or is one that no model has."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{file} is larger than any model's: {_MAX_BYTES >> 20} MiB are read at most")
        return json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(f"{file} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON") from error
    except RecursionError as error:
        raise ModelError(f"{file} is nested too deeply") from error


def read_object(file: Path) -> Json:
    """A JSON object. Raises ModelError where the file is missing or holds something else."""
    value = read(file)
    if not isinstance(value, dict):
        raise ModelError(f"{file} does not hold a JSON object")
    return value


def read_optional(file: Path) -> Json:
    """A JSON object, empty where there is no such file."""
    return read_object(file) if file.is_file() else {}


def object_in(config: Json, key: str) -> Json:
    """The object under `key`, empty where there is none."""
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise ModelError(f"{key!r} in the model's files is not a JSON object")
    return value


def number_in(config: Json, *keys: str) -> int | None:
    """The positive whole number under the first key that has one, None where none has."""
    for key in keys:
        value = config.get(key)
        if value is None or value == -1:  # -1: XLNet's way to say "no limit"
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
            raise ModelError(f"{key!r} in the model's files is not a positive number")
        return int(min(value, 1e30))
    return None


def check_links(folder: Path) -> None:
    """Raises ModelError where a file that may be read is a link to somewhere else.

    In the hub's cache, links to the repository's own blobs are how its files are kept.
    """
    home = folder.resolve()
    homes = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    for here, folders, names in os.walk(home):
        for name in [*folders, *names]:
            file = Path(here, name)
            if not file.is_symlink() or (name in names and file.suffix not in _READ):
                continue
            target = file.resolve()
            if not any(target.is_relative_to(each) for each in homes):
                raise ModelError(f"{file} is a link that leads out of the model's folder")
        if len(Path(here).relative_to(home).parts) >= MAX_DEPTH:
            folders.clear()
