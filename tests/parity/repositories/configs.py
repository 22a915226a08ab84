"""config.json of published models, as their repositories have it. Those that are called small have other sizes alone.

They are in published.json, by the model's name.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any


def published(name: str) -> dict[str, Any]:
    """A copy of one of them."""
    return dict(json.loads(json.dumps(_all()[name])))


@cache
def _all() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())
    return found
