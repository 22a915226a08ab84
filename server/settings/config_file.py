"""The file that `--config` names: TOML whose keys are flags' names, and a [[model]] table for each of several models.

Knows the form of the file and the types of its values; precedence is elsewhere.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from server.settings.flag import Flag, SettingsError, flags_of
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.settings.text_file import read_text

RAY = "ray"  # the table of `embedline ray`, which is read elsewhere
_MODEL = "model"
_MAX_BYTES = 1_000_000  # more is not a config file


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """What a file says: values by the names of fields."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)  # of the server, and of every model that does not differ
    models: tuple[Mapping[str, Any], ...] = ()  # one for each [[model]]


def read(path: str) -> ConfigFile:
    """Raises SettingsError that names the file and, where one is to blame, the key."""
    server, model = _by_name(Settings), _by_name(ModelSettings)
    document = parsed(path)[0]
    document.pop(RAY, None)
    tables = document.pop(_MODEL, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SettingsError(f"{path}: models are given as [[{_MODEL}]] tables")
    return ConfigFile(
        path=path,
        values=values_of(document, server | model, where=path),
        models=tuple(
            values_of(table, model, where=f"{path}: [[{_MODEL}]] {number}") for number, table in enumerate(tables, 1)
        ),
    )


def parsed(path: str) -> tuple[dict[str, Any], str]:
    """The document, and its text. Raises SettingsError."""
    text = read_text(path, name=f"--config {path}", max_bytes=_MAX_BYTES)
    try:
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise SettingsError(f"{path} is not TOML: {' '.join(str(error).split())}") from None


def values_of(table: dict[str, Any], flags: Mapping[str, Flag], *, where: str) -> dict[str, Any]:
    """Checked values by the names of their fields."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        flag = flags.get(key.replace("-", "_"))
        if flag is None:
            raise SettingsError(f"{where}: unknown key {key!r}")
        if flag.name in values:
            raise SettingsError(f"{where}: {key} is given twice")
        try:
            values[flag.name] = flag.from_file(value)
        except ValueError as error:
            raise SettingsError(f"{where}: {key} {error}") from None
    return values


def _by_name(settings: type) -> dict[str, Flag]:
    """Each flag by its field's name and by its other long names."""
    found: dict[str, Flag] = {}
    for flag in flags_of(settings):
        names = [name[2:].replace("-", "_") for name in flag.aliases if name.startswith("--")]
        found |= dict.fromkeys([flag.name, *names], flag)
    return found
