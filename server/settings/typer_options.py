"""Flags as typer options: their words go to `server.settings.precedence`; help is shown in groups.

typer reads options off a function's signature, and has no public way to build one of data. So `with_flags` makes the
signature from the settings; options written out by hand would be a second list of the same flags.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from server.settings.flag import GROUPS, Flag

_WORDS: dict[type, Any] = {bool: bool | None, tuple: list[str] | None}  # kind of flag -> what typer makes; else text
_METAVARS: dict[type, str] = {int: "N", float: "NUMBER"}


class GroupedCommand(TyperCommand):
    """Help with a heading for each group of flags."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """As typer calls it."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def with_flags(command: Callable[..., None], flags: Iterable[Flag]) -> Callable[..., None]:
    """A command whose `**words` are these flags, by group, for typer to read off its signature."""
    own = inspect.signature(command).parameters.values()
    named = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*named, *map(_parameter, sorted(flags, key=lambda flag: GROUPS.index(flag.group)))]

    def typed(**values: Any) -> None:
        command(**values)

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return typed


def _parameter(flag: Flag) -> inspect.Parameter:
    spellings = ("/".join(flag.spellings),) if flag.kind is bool else flag.spellings
    option = typer.Option(
        *spellings, help=_help(flag), metavar=_METAVARS.get(flag.kind), rich_help_panel=flag.group, show_default=False
    )
    words = list[str] | None if flag.is_own else _WORDS.get(flag.kind, str | None)
    annotation = Annotated[words, option]  # type: ignore[valid-type]  # it is made here
    return inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(flag: Flag) -> str:
    choices = f" One of: {', '.join(flag.one_of)}." if flag.one_of else ""
    facts = [*flag.variables[:1], *([f"default: {flag.shown_default}"] if flag.shown_default else ())]
    return f"{flag.help}{choices} [{'; '.join(facts)}]" if facts else f"{flag.help}{choices}"


def spelled_as_switches(arguments: Sequence[str], flags: Iterable[Flag]) -> list[str]:
    """With `--name false` and `--name=true`, as text-embeddings-inference takes them, as `--no-name` and `--name`.

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
    """None where the word says neither."""
    try:
        value: bool = flag.from_text(word)
    except ValueError:
        return None
    return value


def names_of(flags: Sequence[Flag]) -> set[str]:
    """All names of these flags on the command line."""
    return {name for flag in flags for name in flag.spellings}
