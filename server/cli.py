"""The command line. The flags of `serve` are made from the fields of server.settings.Settings, so there is one list."""

import dataclasses
import inspect
import sys
import typing
from typing import Any, NoReturn

import typer

from embedline import __version__
from engine.types import ModelError
from server.serve import serve as run_server
from server.settings import Flag, Settings, SettingsError

_EXIT_SETTINGS = 2


def version() -> None:
    """Print the version."""
    print(__version__)


def serve(**values: Any) -> None:
    """Serve a model over HTTP until SIGTERM or Ctrl-C."""
    try:
        values["fake_fault"] = tuple(values["fake_fault"] or ())
        for field in dataclasses.fields(Settings):  # LOG_LEVEL=INFO is as good as info
            if field.metadata["flag"].one_of and values[field.name]:
                values[field.name] = values[field.name].lower()
        sys.exit(run_server(Settings(**values)))
    except (SettingsError, ModelError) as error:
        _exit_with(str(error))


def _exit_with(message: str) -> NoReturn:
    print(f"embedline: {message}", file=sys.stderr)
    sys.exit(_EXIT_SETTINGS)


def _parameter(field: "dataclasses.Field[Any]", annotation: Any) -> inspect.Parameter:
    """A field of Settings as typer understands it."""
    flag: Flag = field.metadata["flag"]
    names = flag.names or (f"--{field.name.replace('_', '-')}",)
    help_text = f"{flag.help} One of: {', '.join(flag.one_of)}." if flag.one_of else flag.help
    option = typer.Option(*names, help=help_text, envvar=field.name.upper() if flag.env else None)
    if typing.get_origin(annotation) is tuple:
        annotation, default = list[str] | None, None
    else:
        default = field.default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=typing.Annotated[annotation, option]
    )


def make_app() -> typer.Typer:
    """The commands."""
    app = typer.Typer(
        help="A self-hosted embedding inference server.",
        add_completion=False,
        rich_markup_mode=None,  # rich would cut the names of flags short on a usual terminal
        pretty_exceptions_enable=False,
    )
    annotations = typing.get_type_hints(Settings)
    parameters = [_parameter(field, annotations[field.name]) for field in dataclasses.fields(Settings)]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command()(serve)
    app.command()(version)
    return app


def main() -> None:
    """The console script. What is wrong with the arguments is one line, without typer's frame around it."""
    if sys.argv[1:] == ["--version"]:
        version()
        return
    try:
        sys.exit(make_app()(sys.argv[1:] or ["--help"], prog_name="embedline", standalone_mode=False))
    except typer.TyperException as error:
        _exit_with(" ".join(error.format_message().split()))
