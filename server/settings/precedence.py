"""Settings by precedence: the command line, then the environment, then the config file, then the defaults.

The config file is TOML whose keys are flags' names, with a [[model]] table for each of several models. The environment
is what users set, and what SageMaker, Vertex AI and Kubernetes do: the first two choose the port, whatever an image has
in PORT. Of the environment no value is known here but a port and a model's name.
"""

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from server.settings.files import read_text
from server.settings.flag import PREFIX, Flag, SettingsError, flags_of
from server.settings.model import ModelSettings
from server.settings.settings import FEATURE_FLAGS, Settings, server_flags

CONFIG = f"{PREFIX}CONFIG"  # the file, where --config is not given; CONFIG alone is anybody's
# https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
SAGEMAKER_WORD = "serve"  # SageMaker runs `docker run IMAGE serve`
_SAGEMAKER_PORT = "SAGEMAKER_BIND_TO_PORT"
_SAGEMAKER_MODEL = Path("/opt/ml/model")  # where it unpacks the artifacts of a model that has some
_SAGEMAKER_NAMES = {"PORT": _SAGEMAKER_PORT, "MODEL_ID": "HF_MODEL_ID", "REVISION": "HF_MODEL_REVISION"}
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
_VERTEX_PORT = "AIP_HTTP_PORT"
_VERTEX_ARTIFACTS = "AIP_STORAGE_URI"  # gs://…, which the start refuses, or a folder; empty for a model without any
# https://kubernetes.io/docs/tutorials/services/connect-applications-service/: a Service that is called prometheus gives
# every pod beside it this PROMETHEUS_PORT, and one that is called embedline gives it several names with our prefix.
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
_SERVICE_NAME = re.compile(r".*_(SERVICE_(HOST|PORT(_.*)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
RAY = "ray"  # the table of `embedline ray`, which is read elsewhere
_MODEL = "model"
_MAX_CONFIG_BYTES = 1_000_000  # more is not a config file
_MODEL_ID = "model_id"
# A value as typer gives it: a switch is a bool, what can be repeated a list (or one text); None = not given.
Words = Mapping[str, str | bool | Sequence[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """The content of a file: values by the names of fields."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)  # of the server, and of every model that does not differ
    models: tuple[Mapping[str, Any], ...] = ()  # one for each [[model]]


def settings_from(
    words: Words,
    environment: Mapping[str, str],
    *,
    config: str | None = None,
    spelled: Mapping[str, str] = MappingProxyType({}),
) -> Settings:
    """Words of the command line by the names of fields; `config` is a file's path, `spelled` has what a platform calls
    some of the variables. Raises SettingsError."""
    environment = {name: value for name, value in environment.items() if not _is_a_services(name, value)}
    file = read_config(config) if config else ConfigFile()
    server, model = server_flags(), flags_of(ModelSettings)
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
            features=tuple(kind(**_of(flags_of(kind), file.values, given)) for kind in FEATURE_FLAGS),
            variables=tuple(name for _, name, _ in read),
            variables_passed_over=tuple(passed_over(every, environment)),
            variables_unknown=tuple(unknown(every, environment)),
            **_of(flags_of(Settings), file.values, given),
        )


def settings_of_serve(words: Words, config: str | None, *, is_sagemaker: bool = False) -> Settings:
    """The settings of a server on this machine's platform. Raises SettingsError."""
    environment, spelled = of_platform(os.environ, is_sagemaker=is_sagemaker)
    return settings_from(words, environment, config=config or environment.get(CONFIG) or None, spelled=spelled)


def with_model(words: Words, model: str | None) -> Words:
    """The words with the model that stands without its flag. Raises SettingsError where the flag names another."""
    if model is None:
        return words
    if any(text != model for text in _texts(words.get(_MODEL_ID))):
        raise SettingsError(
            f"--model-id names another model than {model!r}, which stands without a flag: give one of the two; for "
            f"several models repeat --model-id"
        )
    return {**words, _MODEL_ID: [model]}


def _each_models_own(flags: Sequence[Flag], words: Words) -> list[dict[str, Any]]:
    """The values that the command line gives each model for its own; one at least, who may have nothing."""
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
    for flag in flags:
        if flag.is_own and flag.name != _MODEL_ID and (flag.name in given or flag.name in file.values):
            raise SettingsError(f"{flag.long_name} is for one model; give it once for each --model-id")
    return tuple(ModelSettings(**_of(flags, file.values, given, each)) for each in own)


def _tables(file: ConfigFile, given: Mapping[str, Any], flags: Sequence[Flag]) -> tuple[ModelSettings, ...]:
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
    """The values that these flags are given; later sources outrank earlier ones."""
    names = {flag.name for flag in flags}
    return {name: value for source in sources for name, value in source.items() if name in names}


def _from_command_line(flags: Sequence[Flag], words: Words) -> dict[str, Any]:
    """The values on the command line, less what is each model's own."""
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
    """What the command line leaves open: the flag, its variable and the value. An empty variable is none."""
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


def read_config(path: str) -> ConfigFile:
    """What the file sets. Raises SettingsError that names the file and, where one is to blame, the key."""
    server, model = _by_name(server_flags()), _by_name(flags_of(ModelSettings))
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
    text = read_text(path, name=f"--config {path}", max_bytes=_MAX_CONFIG_BYTES)
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


def _by_name(flags: Sequence[Flag]) -> dict[str, Flag]:
    """The flags by their fields' names and by its other long names."""
    found: dict[str, Flag] = {}
    for flag in flags:
        names = [name[2:].replace("-", "_") for name in flag.aliases if name.startswith("--")]
        found |= dict.fromkeys([flag.name, *names], flag)
    return found


def of_platform(
    environment: Mapping[str, str], *, is_sagemaker: bool, artifacts: Path = _SAGEMAKER_MODEL
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The environment in the names that flags read, and for each that a platform chose what it is called there. On
    SageMaker the model is that of MODEL_ID, of HF_MODEL_ID, or of the artifacts, in this order; on Vertex AI that of
    MODEL_ID, or of the artifacts."""
    has_model = any(environment.get(name) for name in ("MODEL_ID", f"{PREFIX}MODEL_ID"))
    if environment.get(_VERTEX_PORT):
        names = {"PORT": _VERTEX_PORT, **({} if has_model else {"MODEL_ID": _VERTEX_ARTIFACTS})}
        return _renamed(environment, names)
    if not is_sagemaker:
        return environment, {}
    environment = {**environment, _SAGEMAKER_PORT: environment.get(_SAGEMAKER_PORT) or "8080"}
    if has_model:
        return _renamed(environment, {"PORT": _SAGEMAKER_PORT})
    environment, spelled = _renamed(environment, _SAGEMAKER_NAMES)
    if "MODEL_ID" not in spelled and artifacts.is_dir() and any(artifacts.iterdir()):
        return {**environment, "MODEL_ID": str(artifacts)}, {**spelled, "MODEL_ID": str(artifacts)}
    return environment, spelled


def _renamed(environment: Mapping[str, str], names: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The variables that are set and not empty, under our names."""
    spelled = {ours: theirs for ours, theirs in names.items() if environment.get(theirs)}
    return {**environment, **{ours: environment[theirs] for ours, theirs in spelled.items()}}, spelled


def _is_a_services(name: str, value: str) -> bool:
    """Whether it is of the address of another service of a Kubernetes namespace."""
    is_address = name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value) is not None
    return is_address or _SERVICE_NAME.fullmatch(name) is not None


def passed_over(flags: list[Flag], environment: Mapping[str, str]) -> list[str]:
    """Names without the prefix that flags of earlier versions read. Raises SettingsError where one of them is about
    who may use the server: without it, everybody could."""
    found = []
    for flag in flags:
        for name in flag.variables:
            plain = name.removeprefix(PREFIX)
            if plain not in flag.variables and environment.get(plain):
                if flag.group == "Security" and not environment.get(name):
                    raise SettingsError(f"the variable {plain} is not read: call it {name}, or unset it")
                found.append(plain)
    return found


def unknown(flags: list[Flag], environment: Mapping[str, str]) -> list[str]:
    """Names with the prefix that are no flag's, as one that is misspelt."""
    known = {CONFIG, *(name for flag in flags for name in flag.variables)}
    return [name for name, value in environment.items() if name.startswith(PREFIX) and value and name not in known]
