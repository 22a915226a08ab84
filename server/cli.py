"""The command line. The flags of `serve` are made from the fields of the settings, so there is one list."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from embedline import __version__
from server.commands.run import (
    run_conversion,
    run_doctor,
    run_inspection,
    run_library_check,
    run_quantization,
    run_server,
    run_verification,
)
from server.settings.config_file import VARIABLE as CONFIG_VARIABLE
from server.settings.flag import SettingsError, flags_of
from server.settings.model import ModelSettings
from server.settings.precedence import Words, settings_from
from server.settings.settings import Settings
from server.settings.typer_options import GroupedCommand, spelled_as_switches, with_flags

_EXIT_SETTINGS = 2
_VERSION = (["--version"], ["-V"])
_CONFIG_HELP = (
    "A TOML file whose keys are these flags' names, with a [[model]] table for each of several models. The command "
    f"line and the environment outrank it. [{CONFIG_VARIABLE}]"
)
_AS_CLASSIFIER_HELP = (
    "Make a …ForSequenceClassification of a generative reranker instead: its one score is that of the answer yes less "
    "that of no, so that nothing keeps or computes the rest of the vocabulary. The template stays in config.json."
)
_SOURCE_HELP = (
    "Instead, hold a tensorrt_llm against what its engine relies on: an unpacked wheel or repository, a site-packages "
    "folder, or the package's own. It is read as text; nothing of it is run. Exit code 1 where something is missing."
)
_OF_ENGINES = frozenset({"torch", "transformers", "safetensors"})  # an image that serves may have them elsewhere alone
_FOR_INSPECT = frozenset({"huggingface_hub_cache", "hf_token"})  # of the server's
_OF_MODEL_FOR_CONVERT = frozenset({"revision"})
_FOR_VERIFY = _FOR_INSPECT | {"compiled_cache"}
_FOR_DOCTOR = _FOR_VERIFY | {"engine_python"}
_OF_MODEL_FOR_VERIFY = frozenset(
    {
        "revision",
        "pooling",
        "max_input_length",
        "engine",
        "devices",
        "dtype",
        "quantization",
        "tensorrt_llm_model_class",
    }
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
    from server.commands.health import local_url

    sys.exit(ask(url or local_url()))


def serve(
    *, config: Annotated[str | None, typer.Option(metavar="FILE", help=_CONFIG_HELP)] = None, **words: Any
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C."""
    _run(lambda: run_server(_of_serve(words, config)))


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


def doctor(
    *,
    config: Annotated[str | None, typer.Option(metavar="FILE", help=_CONFIG_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    tensorrt_llm_source: Annotated[str | None, typer.Option(metavar="DIR", help=_SOURCE_HELP)] = None,
    **words: Any,
) -> None:
    """Print what there is on this machine, which engines can serve a model here, and why the others can't.

    Nothing is started, loaded or fetched. Exit code 0 if the model can be served here, 1 if not.
    """
    if tensorrt_llm_source is not None:
        _run(lambda: run_library_check(tensorrt_llm_source, as_json=json))
    _run(lambda: run_doctor(_of_serve(words, config), as_json=json))


def _of_serve(words: Words, config: str | None) -> Settings:
    """What a start would find. Raises SettingsError."""
    return settings_from(words, os.environ, config=config or os.environ.get(CONFIG_VARIABLE) or None)


def _run(command: Callable[[], int]) -> NoReturn:
    """Exit with what a command returns, or with one line and 2."""
    from engine.types import ModelError

    try:
        sys.exit(command())
    except (SettingsError, ModelError) as error:
        _exit_with(str(error))
    except ModuleNotFoundError as error:
        if error.name not in _OF_ENGINES:
            raise
        _exit_with(f"this command needs {error.name}, which is not installed here: pip install 'embedline[server]'")


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
        context_settings={"help_option_names": ["-h", "--help"]},
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


def _add_doctor(app: typer.Typer) -> None:
    of_model = [flag for flag in flags_of(ModelSettings) if flag.group != "Testing"]
    of_server = [flag for flag in flags_of(Settings) if flag.name in _FOR_DOCTOR]
    app.command(cls=GroupedCommand)(with_flags(doctor, [*of_model, *of_server]))


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
    from server.commands.bench import bench

    app.command()(bench)


_COMMANDS: dict[str, Callable[[typer.Typer], None]] = {
    "serve": _add_serve,
    "inspect": _add_inspect,
    "verify": _add_verify,
    "doctor": _add_doctor,
    "convert": _add_convert,
    "quantize": _add_quantize,
    "health": _add_health,
    "bench": _add_bench,
    "version": _add_version,
}


def main() -> None:
    """The console script. What is wrong with the arguments is one line, without typer's frame around it."""
    arguments = sys.argv[1:]
    if arguments[-1:] in _VERSION and (len(arguments) == 1 or arguments[0] == "serve"):  # an image says serve itself
        version()
        return
    if arguments[:1] == ["serve"]:
        arguments = spelled_as_switches(arguments, [*flags_of(ModelSettings), *flags_of(Settings)])
    try:
        app = make_app(only=arguments[0] if arguments else None)
        sys.exit(app(arguments or ["--help"], prog_name="embedline", standalone_mode=False))
    except typer.TyperException as error:
        _exit_with(error.format_message())
