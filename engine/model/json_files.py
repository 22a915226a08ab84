"""Reads a model folder's JSON files and checks the types of values. Errors name the file or key.

Knows nothing of what the values mean.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from engine.types import ModelError
from wire.files import TooLargeError, read_whole
from wire.placeholder import placeholder

Json = dict[str, Any]

MAX_DEPTH = 2  # nested folders above a module


def read(file: Path) -> Any:
    """Any JSON value. Raises ModelError if the file is missing, not JSON, too large or nested too deeply."""
    try:
        return json.loads(read_whole(file))
    except OSError as error:
        raise ModelError(f"{file} can't be read: {error.strerror}") from error
    except TooLargeError as error:
        raise ModelError(f"{file} is too large: {error}") from error
    except ValueError as error:
        raise ModelError(placeholder(file) or f"{file} is not valid JSON") from error
    except RecursionError as error:
        raise ModelError(f"{file} is nested too deeply") from error


def read_object(file: Path) -> Json:
    """A JSON object. Raises ModelError if the file is missing or holds another value."""
    value = read(file)
    if not isinstance(value, dict):
        raise ModelError(f"{file} does not hold a JSON object")
    return value


def read_optional(file: Path) -> Json:
    """A JSON object, empty if the file is missing. Raises ModelError if it holds another value."""
    return read_object(file) if file.is_file() else {}


def object_in(config: Json, key: str, file: str = "the model's files") -> Json:
    """The object under `key`, empty if there is none. Raises ModelError for another value."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{key!r} in {file} is not a JSON object")
    return value or {}


def flag_in(config: Json, key: str, file: str, *, default: bool) -> bool:
    """The switch under `key`. Raises ModelError for a value that is neither true nor false.

    Where it is false by default, null is false, as in sentence-transformers, which once wrote `do_lower_case: null`.
    """
    value = config.get(key, default)
    if value is None and not default:
        return False
    if not isinstance(value, bool):
        raise ModelError(f"{key!r} in {file} is neither true nor false")
    return value


def check_known(config: Json, known: Collection[str], file: str) -> None:
    """Raises ModelError for a key in `file` that is not read here, and so may change rows elsewhere."""
    for name in sorted(config.keys() - set(known)):
        raise unread_key_error(name, file)


def unread_key_error(key: str, file: str) -> ModelError:
    """The refusal of a key."""
    return ModelError(f"{key[:60]!r} in {file} may change rows, and is not read; if it changes nothing, take it out")


def number_in(config: Json, *keys: str, file: str = "config.json") -> int | None:
    """The positive integer under the first key that has one, or None. Raises ModelError for another value."""
    for key in keys:
        value = config.get(key)
        if value is None or value == -1:  # XLNet writes -1 for "no limit"
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
            raise ModelError(f"{key!r} in {file} is not a positive number")
        return int(min(value, 1e30))
    return None


def needed_number(config: Json, *keys: str, file: str = "config.json") -> int:
    """The positive integer under the first key that has one. Raises ModelError if none has, and for another value."""
    number = number_in(config, *keys, file=file)
    if number is None:
        raise ModelError(f"{file} has no {' or '.join(keys)}")
    return number
