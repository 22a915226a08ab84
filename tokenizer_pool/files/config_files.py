"""The JSON files beside tokenizer.json."""

import json
from pathlib import Path
from typing import Any

from wire.placeholder import placeholder

Config = dict[str, Any]


class TokenizerError(Exception):
    """A model folder holds no tokenizer that can be used; the message is one line for the operator."""


def read_config(path: Path) -> Config:
    """The JSON object in a file, {} where there is no such file. Raises TokenizerError."""
    if found := placeholder(path):
        raise TokenizerError(found)
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return config


def is_of_transformers_5(tokenizer_config: Config) -> bool:
    """Whether transformers 5 saved the tokenizer: no earlier version writes this key."""
    return tokenizer_config.get("backend") == "tokenizers"
