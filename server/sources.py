"""Settings out of what was given where: the command line outranks the environment, that the file, that the defaults."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server import config_file
from server.config_file import ConfigFile
from server.flag import Flag, SettingsError, flags_of
from server.model_settings import ModelSettings
from server.settings import Settings

_ONE_MODELS_OWN = ("model_id", "revision", "served_model_name")  # can't hold for several

# As typer gives it: a switch is a bool, what can be repeated a list; None = not given.
Words = Mapping[str, str | bool | Sequence[str] | None]


def settings_from(words: Words, environment: Mapping[str, str], *, config: str | None = None) -> Settings:
    """Words of the command line by the names of fields; `config` is a file's path. Raises SettingsError."""
    file = config_file.read(config) if config else ConfigFile()
    server, model = flags_of(Settings), flags_of(ModelSettings)
    given = {**_from_environment([*server, *model], words, environment), **_from_command_line([*server, *model], words)}
    models = _several(file, given, model) if file.models else (ModelSettings(**_of(model, file.values, given)),)
    with _blaming(file.path if file.models else ""):
        return Settings(models=models, **_of(server, file.values, given))


def _several(file: ConfigFile, given: Mapping[str, Any], flags: Sequence[Flag]) -> tuple[ModelSettings, ...]:
    """A model for each table of the file."""
    for flag in flags:
        if flag.name in _ONE_MODELS_OWN and (flag.name in given or flag.name in file.values):
            raise SettingsError(f"{flag.long_name} is for one model, and {file.path} has [[model]] tables")
    models = []
    for number, table in enumerate(file.models, 1):
        with _blaming(f"{file.path}: [[model]] {number}"):
            if "model_id" not in table:
                raise SettingsError("model-id is missing")
            models.append(ModelSettings(**_of(flags, {**file.values, **table}, given)))
    return tuple(models)


def _of(flags: Sequence[Flag], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """What these flags are given; later sources outrank earlier ones."""
    names = {flag.name for flag in flags}
    return {name: value for source in sources for name, value in source.items() if name in names}


def _from_command_line(flags: Sequence[Flag], words: Words) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for flag in flags:
        word = words.get(flag.name)
        if isinstance(word, str):
            with _blaming_flag(flag):
                values[flag.name] = flag.from_text(word)
        elif isinstance(word, bool):
            values[flag.name] = word
        elif word:
            values[flag.name] = tuple(word)
    return values


def _from_environment(flags: Sequence[Flag], words: Words, environment: Mapping[str, str]) -> dict[str, Any]:
    """Of what the command line leaves open. An empty variable is none."""
    values: dict[str, Any] = {}
    for flag in flags:
        variable = next((name for name in flag.variables if environment.get(name)), None)
        if variable is not None and not words.get(flag.name) and words.get(flag.name) is not False:
            with _blaming_flag(flag, f" (the variable {variable})"):
                values[flag.name] = flag.from_text(environment[variable])
    return values


@contextlib.contextmanager
def _blaming_flag(flag: Flag, where: str = "") -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SettingsError(f"{flag.long_name}{where} {error}") from None


@contextlib.contextmanager
def _blaming(where: str) -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}" if where else str(error)) from None
