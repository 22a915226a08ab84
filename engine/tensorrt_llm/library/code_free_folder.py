"""A model's folder without its code: no .py files, and no entry in its configuration that names one.

Some versions of the library run a folder's code when they load a configuration, even where trust_remote_code is false.
Here they find none.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.model.json_files import read

_NAMES_CODE = "auto_map"
_CODE = ".py"
_JSON = ".json"


@contextlib.contextmanager
def without_code(folder: Path) -> Iterator[Path]:
    """The folder itself where it has no code; else one of links to its other files, for as long as it is loaded from.

    Raises ModelError where a JSON file can't be read.
    """
    files = [file for file in folder.iterdir() if file.is_file()]
    cleaned = {file.name: _without(read(file)) for file in files if file.suffix == _JSON and _names_code(file)}
    if not cleaned and not any(file.suffix == _CODE for file in files):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="embedline-model-") as place:
        for file in files:
            if file.name in cleaned:
                Path(place, file.name).write_text(json.dumps(cleaned[file.name]), encoding="utf-8")
            elif file.suffix != _CODE:
                Path(place, file.name).symlink_to(file.absolute())
        yield Path(place)


def _names_code(file: Path) -> bool:
    """By its bytes: most JSON files of a folder are large and say nothing of it."""
    return f'"{_NAMES_CODE}"'.encode() in file.read_bytes()


def _without(value: Any) -> Any:
    """The same without the word, at any depth."""
    if isinstance(value, dict):
        return {key: _without(one) for key, one in value.items() if key != _NAMES_CODE}
    return [_without(one) for one in value] if isinstance(value, list) else value
