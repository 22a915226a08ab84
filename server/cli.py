"""The command line. `serve` with flags and their values alone is read here, and everything else by server.program.

A server is started far more often than its help is asked for, and typer takes a quarter of the time until the first
process is started: to be imported, and to make an option of each flag.
"""

import contextlib
import faulthandler
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from server.settings.flag import Flag, SettingsError, flags_of
from server.settings.model import ModelSettings
from server.settings.precedence import SAGEMAKER_WORD, settings_of_serve
from server.settings.settings import server_flags

_VERSION = (["--version"], ["-V"])
_CONFIG = "--config"
_OF_ENGINES = frozenset({"torch", "transformers", "safetensors"})  # an image that serves may have them elsewhere alone


def main() -> None:
    """The console script. What is wrong with the arguments is one line, without typer's frame around it."""
    faulthandler.enable(file=2)  # some commands load models
    arguments = sys.argv[1:]
    with _one_line_for_errors():
        if arguments[:1] == ["serve"]:
            flags = [*flags_of(ModelSettings), *server_flags()]
            arguments = spelled_as_switches(arguments, flags)
            words = plain_words(arguments[1:], flags)
            if words is not None:
                sys.exit(_serve(words))
        _run(arguments)


def _serve(words: dict[str, str | bool | list[str]]) -> int:
    from server.commands.serve import serve

    config = words.pop("config", None)
    assert config is None or isinstance(config, str)
    return serve(settings_of_serve(words, config))


def _run(arguments: list[str]) -> None:
    import typer

    from server import program

    if arguments[-1:] in _VERSION and (len(arguments) == 1 or arguments[0] == "serve"):  # an image says serve itself
        program.version()
        return
    try:
        app = program.make_app(only=arguments[0] if arguments else None)
        sys.exit(app(arguments or ["--help"], prog_name="embedline", standalone_mode=False))
    except typer.TyperException as error:
        _exit_with(error.format_message())


@contextlib.contextmanager
def _one_line_for_errors() -> Iterator[None]:
    """Exit with 2 and one line where settings, the model or a missing package stop a command."""
    try:
        yield
    except SettingsError as error:
        _exit_with(str(error))
    except ModuleNotFoundError as error:
        if error.name not in _OF_ENGINES:
            raise
        _exit_with(f"this command needs {error.name}, which is not installed here: pip install 'embedline[server]'")
    except Exception as error:
        from engine.types import ModelError  # imports numpy, which some commands do without

        if not isinstance(error, ModelError):
            raise
        _exit_with(str(error))


def _exit_with(message: str) -> NoReturn:
    print(f"embedline: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def plain_words(arguments: Sequence[str], flags: Iterable[Flag]) -> dict[str, str | bool | list[str]] | None:
    """The words of `--name value`, `--name=value` and switches by the names of their fields, as typer gives them; of
    --config too, and of a model without its flag. None where there is anything else, which server.program knows: help,
    a name or a value that is missing, a model that is given in both ways."""
    by_spelling = {spelling: flag for flag in flags for spelling in flag.spellings}
    words: dict[str, str | bool | list[str]] = {}
    models: list[str] = []  # without the flag
    rest = list(arguments)
    while rest:
        if not rest[0].startswith("-"):
            models.append(rest.pop(0))
            continue
        spelling, has_value, value = rest.pop(0).partition("=")
        flag = by_spelling.get(spelling)
        is_known, is_switch = flag is not None or spelling == _CONFIG, flag is not None and flag.kind is bool
        if not is_known or (has_value and (is_switch or not spelling.startswith("--"))):
            return None
        if not has_value and not is_switch:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        if flag is None:
            words["config"] = value
        elif is_switch:
            words[flag.name] = spelling == flag.long_name
        elif flag.is_own or flag.kind is tuple:
            texts = words.setdefault(flag.name, [])
            assert isinstance(texts, list)
            texts.append(value)
        else:
            words[flag.name] = value
    if models and (len(models) > 1 or "model_id" in words or models == [SAGEMAKER_WORD]):
        return None
    return {**words, "model_id": models} if models else words


def spelled_as_switches(arguments: Sequence[str], flags: Iterable[Flag]) -> list[str]:
    """Spells `--name false` and `--name=true`, as text-embeddings-inference takes them, as `--no-name` and `--name`.

    For a command that takes nothing but flags. What is no word for true or false stays as it is.
    """
    switches = {flag.long_name: flag for flag in flags if flag.kind is bool}
    spelled: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, separator, word = argument.partition("=")
        flag = switches.get(name)
        value = _switched(flag, word if separator else rest[0] if rest else "") if flag else None
        if flag is None or value is None:
            spelled.append(argument)
            continue
        if not separator:
            rest.pop(0)
        spelled.append(flag.spellings[0 if value else 1])
    return spelled


def _switched(flag: Flag, word: str) -> bool | None:
    try:
        value: bool = flag.from_text(word)
    except ValueError:
        return None
    return value
