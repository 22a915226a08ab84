"""The commands and their help, by typer: the flags of `serve` are made from the fields of the settings, so there is one
list.

typer reads options off a function's signature, and has no public way to build one of data. So `with_flags` makes the
signature from the settings; options written out by hand would be a second list of the same flags. Their words go to
`server.settings.precedence`, and help is shown in groups.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from embedline import __version__
from server.feature import Command, Group, loaded
from server.settings.flag import HUB_FLAGS, Flag, flags_of
from server.settings.model import ModelSettings
from server.settings.precedence import CONFIG as CONFIG_VARIABLE
from server.settings.precedence import SAGEMAKER_WORD, Words, settings_from, settings_of_serve, with_model
from server.settings.settings import Settings, by_group, server_flags

_WORDS: dict[type, Any] = {bool: bool | None, tuple: list[str] | None}  # kind of flag -> what typer makes; else text
_METAVARS: dict[type, str] = {int: "N", float: "NUMBER"}
_CONFIG_HELP = (
    "A TOML file whose keys are these flags' names, with a [[model]] table for each of several models. The command "
    f"line and the environment outrank it. [{CONFIG_VARIABLE}]"
)
_MODEL_FLAGS, _SERVER_FLAGS = flags_of(ModelSettings), server_flags()
_Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A folder, or a name on the hub, in place of --model-id.", show_default=False),
]
_OF_REAL_MODELS = tuple(flag.name for flag in _MODEL_FLAGS if flag.group != "Testing")
_CHANGE_GRAPHS = (
    "task",
    "template",
    "pooling",
    "trust_config_key",
    "max_input_length",
    "quantization",
    "convert",
)


def version() -> None:
    """Print the version."""
    print(__version__)


def health(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="By default this machine's, on PORT or 8080.")
    ] = None,
) -> None:
    """Ask a server whether it is ready: exit code 0 if it is, 1 if not."""
    from server.commands.health import health as ask
    from server.commands.health import local_urls

    sys.exit(ask(*([url] if url else local_urls())))


def serve(
    model: _Model = None,  # or SageMaker's word, behind an image's own ones
    *,
    config: Annotated[str | None, typer.Option(metavar="FILE", help=_CONFIG_HELP)] = None,
    **words: Any,
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C."""
    from server.commands.serve import serve as run

    if model == SAGEMAKER_WORD:
        sys.exit(run(settings_of_serve(words, config, is_sagemaker=True)))
    sys.exit(run(settings_of_serve(with_model(words, model), config)))


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    **words: Any,
) -> None:
    """Print what is known of a model before it is loaded, and why. One that is on the hub alone is fetched."""
    from server.commands.inspect import inspect as run

    sys.exit(run(_of_model(model, words), as_json=json))


def compile_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    *,
    out: Annotated[str, typer.Option(metavar="DIR", help="The new folder: one that is not there yet, or is empty.")],
    **words: Any,
) -> None:
    """Compile a model for the openvino engine of any machine: `embedline serve --compiled-model DIR` takes the folder.

    A start from it needs neither torch nor transformers. It serves every --dtype, and the self-test is run again there.
    """
    from server.commands.model_copies import compile_model as run

    sys.exit(run(_of_model(model, words), out))


def doctor(
    model: _Model = None,
    *,
    config: Annotated[str | None, typer.Option(metavar="FILE", help=_CONFIG_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    **words: Any,
) -> None:
    """Print what there is on this machine, which engines can serve a model here, and why the others can't.

    Nothing is started, loaded or fetched. Exit code 0 if the model can be served here, 1 if not.
    """
    from server.commands.doctor import doctor as run

    sys.exit(run(settings_of_serve(with_model(words, model), config), as_json=json))


def _of_model(model: str, words: Words) -> Settings:
    return settings_from({**words, "model_id": model}, os.environ)


def make_app(*, only: str | None = None) -> typer.Typer:
    """The program with all commands, or only the one of this name: each costs the time to build its options."""
    app = typer.Typer(
        help="A self-hosted embedding inference server.",
        add_completion=False,
        rich_markup_mode=None,  # rich would cut the names of flags short on a usual terminal
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_nothing)  # so that a single command is called by its name as well
    if only in _COMMANDS:
        _add(app, only, *_COMMANDS[only])
        return app
    from server.features.table import FEATURES  # the core's commands do without

    of_features = {name: command for feature in FEATURES for name, command in feature.commands.items()}
    names = _in_order(of_features)
    for name in [only] if only in names else names:
        if name in of_features:
            _add_of_feature(app, name, of_features[name])
        else:
            _add(app, name, *_COMMANDS[name])
    return app


def _in_order(of_features: Mapping[str, Command | Group]) -> list[str]:
    """The names of all commands as help lists them."""
    names = list(_COMMANDS)
    for name, command in of_features.items():
        before = command.before if isinstance(command, Command) else ""
        names.insert(names.index(before) if before else len(names), name)
    return names


def _add_of_feature(app: typer.Typer, name: str, command: Command | Group) -> None:
    if isinstance(command, Command):
        of_model = [flag.name for flag in _MODEL_FLAGS] if command.is_of_model else []
        _add(app, name, loaded(command.function), _named(*of_model, *command.flags))
        return
    group = typer.Typer(help=command.help)
    for its_name, function in command.functions.items():
        _add(group, its_name, loaded(function))
    app.add_typer(group, name=name)


def _add(app: typer.Typer, name: str, function: Callable[..., None], flags: Sequence[Flag] = ()) -> None:
    if flags:
        app.command(name, cls=GroupedCommand)(with_flags(function, flags))
    else:
        app.command(name)(function)


def _nothing() -> None:
    """A self-hosted embedding inference server."""


def _named(*names: str) -> list[Flag]:
    return [flag for flag in [*_MODEL_FLAGS, *_SERVER_FLAGS] if flag.name in names]


class GroupedCommand(TyperCommand):
    """Help with a heading for each group of flags."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Typer calls this."""
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
    own = signature(command).parameters.values()
    named = [parameter for parameter in own if parameter.kind is not Parameter.VAR_KEYWORD]
    parameters = [*named, *map(_parameter, by_group(flags))]

    def typed(**values: Any) -> None:
        command(**values)

    typed.__name__, typed.__doc__ = command.__name__, command.__doc__
    typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return typed


def _parameter(flag: Flag) -> Parameter:
    spellings = ("/".join(flag.spellings),) if flag.kind is bool else flag.spellings
    option = typer.Option(
        *spellings, help=_help(flag), metavar=_METAVARS.get(flag.kind), rich_help_panel=flag.group, show_default=False
    )
    words = list[str] | None if flag.is_own else _WORDS.get(flag.kind, str | None)
    annotation = Annotated[words, option]  # type: ignore[valid-type]  # it is made here
    return Parameter(flag.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(flag: Flag) -> str:
    choices = f" One of: {', '.join(flag.one_of)}." if flag.one_of else ""
    facts = [*flag.variables[:1], *([f"default: {flag.shown_default}"] if flag.shown_default else ())]
    return f"{flag.help}{choices} [{'; '.join(facts)}]" if facts else f"{flag.help}{choices}"


_COMMANDS: dict[str, tuple[Callable[..., None], list[Flag]]] = {
    "serve": (serve, [*_MODEL_FLAGS, *_SERVER_FLAGS]),
    "inspect": (inspect, _named(*HUB_FLAGS, *(name for name in _OF_REAL_MODELS if name != "model_id"))),
    "compile": (compile_model, _named(*HUB_FLAGS, *_CHANGE_GRAPHS, "compiled_cache", "cpu_threads")),
    "doctor": (doctor, _named(*HUB_FLAGS, *_OF_REAL_MODELS, "compiled_cache", "engine_python")),
    "health": (health, []),
    "version": (version, []),
}
