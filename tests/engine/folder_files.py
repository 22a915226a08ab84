"""Makes and changes the files of a folder, mostly a model's JSON files."""

import json
from pathlib import Path
from typing import Any

NO_TENSORS = b"\x02" + bytes(7) + b"{}"  # a safetensors file


def write(file: Path, value: Any) -> None:
    """JSON into a file, its folder made where needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def put(root: Path, files: dict[str, str]) -> Path:
    """Texts into files under a root, which stands in for the machine's."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def change(file: Path, **fields: Any) -> None:
    """Set fields of a JSON object in a file; None takes one out."""
    value = json.loads(file.read_text()) if file.is_file() else {}
    write(file, {name: field for name, field in {**value, **fields}.items() if field is not None})
