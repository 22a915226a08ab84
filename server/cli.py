"""The command line. The flags of `serve` are made from the fields of the settings, so there is one list."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from embedline import __version__
from server.config_file import VARIABLE as CONFIG_VARIABLE
from server.flag import SettingsError, flags_of
from server.model_settings import ModelSettings
from server.options import GroupedCommand, with_flags
from server.settings import Settings
from server.sources import settings_from

_EXIT_SETTINGS = 2
_CONFIG_HELP = (
    "A TOML file whose keys are these flags' names, with a [[model]] table for each of several models. The command "
    f"line and the environment outrank it. [{CONFIG_VARIABLE}]"
)
_AS_CLASSIFIER_HELP = (
    "Make a …ForSequenceClassification of a generative reranker instead: its one score is that of the answer yes less "
    "that of no, so that nothing keeps or computes the rest of the vocabulary. The template stays in config.json."
)
_FOR_INSPECT = frozenset({"huggingface_hub_cache", "hf_token"})  # of the server's
_OF_MODEL_FOR_CONVERT = frozenset({"revision"})
_FOR_VERIFY = _FOR_INSPECT | {"compiled_cache"}
_OF_MODEL_FOR_VERIFY = frozenset(
    {
        "revision",
        "pooling",
        "max_input_length",
        "engine",
        "devices",
        "dtype",
        "quantization",
    }
)
# Flags of text-embeddings-inference that start commands carry over, and that have no like here.
_NOT_OURS = frozenset({"--dense-path", "--disable-spans", "--otlp-endpoint", "--otlp-service-name", "--uds-path"})


def version() -> None:
    """Print the version."""
    print(__version__)


def health(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="By default this machine's, on PORT or 8080.")
    ] = None,
) -> None:
    """Ask a server whether it is ready: exit code 0 if it is, 1 if not."""
    from server.health_command import health as ask
    from server.health_command import local_url

    sys.exit(ask(url or local_url()))


def serve(
    *, config: Annotated[str | None, typer.Option(metavar="FILE", help=_CONFIG_HELP)] = None, **words: Any
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C."""
    config = config or os.environ.get(CONFIG_VARIABLE) or None
    _run(lambda: run_server(settings_from(words, os.environ, config=config)))


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    **words: Any,
) -> None:
    """Print what is known of a model before it is loaded, and why. One that is on the hub alone is fetched."""
    _run(lambda: run_inspection(settings_from({**words, "model_id": model}, os.environ), as_json=json))


def verify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    **words: Any,
) -> None:
    """Hold a model's rows of fixed texts against those of the library it was made with: exit code 1 if they differ.

    That is sentence-transformers or transformers, one text at a time; the engine is the one that a start would take.
    With --quantization fp8 they are held against the same model with plain weights instead, as a start does that finds
    nothing in its cache: exit code 0 if the model can be served so, at least in part.
    """
    _run(lambda: run_verification(settings_from({**words, "model_id": model}, os.environ), as_json=json))


def convert(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The new folder: one that is not there yet, or is empty.")],
    *,
    as_classifier: Annotated[bool, typer.Option("--as-classifier", help=_AS_CLASSIFIER_HELP)] = False,
    **words: Any,
) -> None:
    """Make safetensors of a model's pytorch_model.bin and *.pt files, and a folder that can be served.

    Such files can run code when they are read. They are read as weights alone, by a process of their own that has no
    network, where the kernel permits that; a file that wants more is refused.
    """
    settings = {**words, "model_id": model}
    _run(lambda: run_conversion(settings_from(settings, os.environ), out, as_classifier=as_classifier))


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The new folder: one that is not there yet, or is empty.")],
    **words: Any,
) -> None:
    """Make a model's copy whose linear layers are FP8, with a scale for each block of 128 by 128 numbers.

    It takes a CPU, no data and little memory. What ended early lies in OUT.partial, and the same command goes on with
    it. Prints what each tensor lost.
    """
    _run(lambda: run_quantization(settings_from({**words, "model_id": model}, os.environ), out))


def run_server(settings: Settings) -> int:
    """Serve; the exit code."""
    from server.serve import serve as run  # the other commands have no use for it, nor time

    return run(settings)


def run_inspection(settings: Settings, *, as_json: bool) -> int:
    """Print; the exit code."""
    from server.inspection import inspect as run

    return run(settings, as_json=as_json)


def run_verification(settings: Settings, *, as_json: bool) -> int:
    """Print; the exit code."""
    from server.verify_command import verify as run

    return run(settings, as_json=as_json)


def run_conversion(settings: Settings, out: str, *, as_classifier: bool) -> int:
    """Convert and print; the exit code."""
    from server.convert_command import convert, convert_to_classifier

    return convert_to_classifier(settings, out) if as_classifier else convert(settings, out)


def run_quantization(settings: Settings, out: str) -> int:
    """Quantize and print; the exit code."""
    from server.quantize_command import quantize as run

    return run(settings, out)


def _run(command: Callable[[], int]) -> NoReturn:
    """Exit with what a command returns, or with one line and 2."""
    from engine.types import ModelError

    try:
        sys.exit(command())
    except (SettingsError, ModelError) as error:
        _exit_with(str(error))


def _exit_with(message: str) -> NoReturn:
    print(f"embedline: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(_EXIT_SETTINGS)


def make_app(*, only: str | None = None) -> typer.Typer:
    """All commands, or the one of this name: each costs its imports."""
    app = typer.Typer(
        help="A self-hosted embedding inference server.",
        add_completion=False,
        rich_markup_mode=None,  # rich would cut the names of flags short on a usual terminal
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)  # so that a single command is called by its name as well
    for name, add in _COMMANDS.items():
        if only in (None, name) or only not in _COMMANDS:
            add(app)
    return app


def _nothing() -> None:
    """A self-hosted embedding inference server."""


def _add_serve(app: typer.Typer) -> None:
    app.command(cls=GroupedCommand)(with_flags(serve, [*flags_of(ModelSettings), *flags_of(Settings)]))


def _add_inspect(app: typer.Typer) -> None:
    of_model = [flag for flag in flags_of(ModelSettings) if flag.group != "Testing" and flag.name != "model_id"]
    of_server = [flag for flag in flags_of(Settings) if flag.name in _FOR_INSPECT]
    app.command(cls=GroupedCommand)(with_flags(inspect, [*of_model, *of_server]))


def _add_verify(app: typer.Typer) -> None:
    of_model = [flag for flag in flags_of(ModelSettings) if flag.name in _OF_MODEL_FOR_VERIFY]
    of_server = [flag for flag in flags_of(Settings) if flag.name in _FOR_VERIFY]
    app.command(cls=GroupedCommand)(with_flags(verify, [*of_model, *of_server]))


def _add_convert(app: typer.Typer) -> None:
    of_model = [flag for flag in flags_of(ModelSettings) if flag.name in _OF_MODEL_FOR_CONVERT]
    of_server = [flag for flag in flags_of(Settings) if flag.name in _FOR_INSPECT]
    app.command(cls=GroupedCommand)(with_flags(convert, [*of_model, *of_server]))


def _add_quantize(app: typer.Typer) -> None:
    of_model = [flag for flag in flags_of(ModelSettings) if flag.name in _OF_MODEL_FOR_CONVERT]
    of_server = [flag for flag in flags_of(Settings) if flag.name in _FOR_INSPECT]
    app.command(cls=GroupedCommand)(with_flags(quantize, [*of_model, *of_server]))


def _add_health(app: typer.Typer) -> None:
    app.command()(health)


def _add_version(app: typer.Typer) -> None:
    app.command()(version)


def _add_bench(app: typer.Typer) -> None:
    from server.bench_command import bench

    app.command()(bench)


_COMMANDS: dict[str, Callable[[typer.Typer], None]] = {
    "serve": _add_serve,
    "inspect": _add_inspect,
    "verify": _add_verify,
    "convert": _add_convert,
    "quantize": _add_quantize,
    "health": _add_health,
    "bench": _add_bench,
    "version": _add_version,
}


def main() -> None:
    """The console script. What is wrong with the arguments is one line, without typer's frame around it."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        version()
        return
    try:
        app = make_app(only=arguments[0] if arguments else None)
        sys.exit(app(arguments or ["--help"], prog_name="embedline", standalone_mode=False))
    except typer.TyperException as error:
        foreign = sorted(_NOT_OURS & {argument.partition("=")[0] for argument in arguments})
        hint = f"; {foreign[0]} is not supported here, leave it out" if foreign else ""
        _exit_with(f"{error.format_message()}{hint}")
