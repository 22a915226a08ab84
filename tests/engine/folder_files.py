"""Makes and changes the JSON files of a model folder."""

import json
from pathlib import Path
from typing import Any

NO_TENSORS = b"\x02" + bytes(7) + b"{}"  # a safetensors file


def write(file: Path, value: Any) -> None:
    """JSON into a file, its folder made where needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def change(file: Path, **fields: Any) -> None:
    """Set fields of a JSON object in a file; None takes one out."""
    value = json.loads(file.read_text()) if file.is_file() else {}
    write(file, {name: field for name, field in {**value, **fields}.items() if field is not None})
