"""Settings by precedence: the command line, then the environment, then the config file, then the defaults."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from server.settings import config_file
from server.settings.config_file import ConfigFile
from server.settings.environment import passed_over, unknown, without_services
from server.settings.flag import Flag, SettingsError, flags_of
from server.settings.model import ModelSettings
from server.settings.settings import Settings

_MODEL_ID = "model_id"

# As typer gives it: a switch is a bool, what can be repeated a list (or one text); None = not given.
Words = Mapping[str, str | bool | Sequence[str] | None]


def settings_from(
    words: Words,
    environment: Mapping[str, str],
    *,
    config: str | None = None,
    spelled: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """Words of the command line by the names of fields; `config` is a file's path, `spelled` has what a platform calls
    some of the variables. Raises SettingsError."""
    environment = without_services(environment)
    file = config_file.read(config) if config else ConfigFile()
    server, model = flags_of(Settings), flags_of(ModelSettings)
    every = [*server, *model]
    read = _from_environment(every, words, environment, spelled)
    given = {**{flag.name: value for flag, _, value in read}, **_from_command_line(every, words)}
    own = _each_models_own(model, words)
    if len(own) > 1 and not file.models:
        models = _repeated(own, file, given, model)
    else:
        given |= own[0]
        models = _tables(file, given, model) if file.models else (ModelSettings(**_of(model, file.values, given)),)
    with _blaming(file.path if file.models else ""):
        return Settings(
            models=models,
            variables=tuple(name for _, name, _ in read),
            variables_passed_over=tuple(passed_over(every, environment)),
            variables_unknown=tuple(unknown(every, environment)),
            **_of(server, file.values, given),
        )


def _each_models_own(flags: Sequence[Flag], words: Words) -> list[dict[str, Any]]:
    """What the command line gives each model for its own; one at least, who may have nothing."""
    given = {flag: _texts(words.get(flag.name)) for flag in flags if flag.is_own}
    num_models = max(1, len(_texts(words.get(_MODEL_ID))))
    for flag, texts in given.items():
        if len(texts) not in (0, num_models):
            raise SettingsError(
                f"{flag.long_name} is given {len(texts)} times for {num_models} model(s): give it once for each "
                f"--model-id, in the same order, or not at all"
            )
    return [
        {flag.name: flag.from_text(texts[number]) for flag, texts in given.items() if texts}
        for number in range(num_models)
    ]


def _texts(word: str | bool | Sequence[str] | None) -> Sequence[str]:
    assert not isinstance(word, bool), "no switch is a model's own"
    return (word,) if isinstance(word, str) else word or ()


def _repeated(
    own: Sequence[Mapping[str, Any]], file: ConfigFile, given: Mapping[str, Any], flags: Sequence[Flag]
) -> tuple[ModelSettings, ...]:
    """A model for each --model-id of the command line."""
    for flag in flags:
        if flag.is_own and flag.name != _MODEL_ID and (flag.name in given or flag.name in file.values):
            raise SettingsError(f"{flag.long_name} is for one model; give it once for each --model-id")
    return tuple(ModelSettings(**_of(flags, file.values, given, each)) for each in own)


def _tables(file: ConfigFile, given: Mapping[str, Any], flags: Sequence[Flag]) -> tuple[ModelSettings, ...]:
    """A model for each table of the file."""
    for flag in flags:
        if flag.is_own and (flag.name in given or flag.name in file.values):
            raise SettingsError(f"{flag.long_name} is for one model, and {file.path} has [[model]] tables")
    models = []
    for number, table in enumerate(file.models, 1):
        with _blaming(f"{file.path}: [[model]] {number}"):
            if _MODEL_ID not in table:
                raise SettingsError("model-id is missing")
            models.append(ModelSettings(**_of(flags, {**file.values, **table}, given)))
    return tuple(models)


def _of(flags: Sequence[Flag], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """What these flags are given; later sources outrank earlier ones."""
    names = {flag.name for flag in flags}
    return {name: value for source in sources for name, value in source.items() if name in names}


def _from_command_line(flags: Sequence[Flag], words: Words) -> dict[str, Any]:
    """Less what is each model's own."""
    values: dict[str, Any] = {}
    for flag in flags:
        word = None if flag.is_own else words.get(flag.name)
        if isinstance(word, str):
            with _blaming_flag(flag):
                values[flag.name] = flag.from_text(word)
        elif isinstance(word, bool):
            values[flag.name] = word
        elif word:
            values[flag.name] = tuple(word)
    return values


def _from_environment(
    flags: Sequence[Flag], words: Words, environment: Mapping[str, str], spelled: Mapping[str, str]
) -> list[tuple[Flag, str, Any]]:
    """Of what the command line leaves open: the flag, its variable and the value. An empty variable is none."""
    values: list[tuple[Flag, str, Any]] = []
    for flag in flags:
        variable = next((name for name in flag.variables if environment.get(name)), None)
        if variable is not None and not words.get(flag.name) and words.get(flag.name) is not False:
            name = spelled.get(variable, variable)
            with _blaming_flag(flag, f" (the variable {name})"):
                values.append((flag, name, flag.from_text(environment[variable])))
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
