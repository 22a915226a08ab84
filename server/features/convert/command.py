"""`embedline convert`: a copy of a model without pickles in a new folder, or a reranker's copy as a classifier."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.settings.precedence import settings_from
from server.settings.settings import Settings

if TYPE_CHECKING:
    from engine.convert.conversion import Conversion

_MIB = 1 << 20
_AS_CLASSIFIER_HELP = (
    "Make a …ForSequenceClassification of a generative reranker instead: its one score is that of the answer yes less "
    "that of no, so that nothing keeps or computes the rest of the vocabulary. The template stays in config.json."
)


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
    from engine.store.output_folder import new_folder
    from server.commands.model_copies import clean_exit_on_sigterm

    settings = settings_from({**words, "model_id": model}, os.environ)
    target = new_folder(Path(out))  # before anything is fetched
    with clean_exit_on_sigterm():
        lines = (_classifier if as_classifier else _without_pickles)(settings, target)
    print("\n".join(lines))


def _found(settings: Settings, **options: Any) -> Path:
    from engine.store import model_source

    model, cache = settings.models[0], settings.huggingface_hub_cache
    options |= {"cache_dir": Path(cache) if cache else None, "token": settings.hf_token}
    return model_source.resolve(model.model_id, model.revision, **options).path


def _without_pickles(settings: Settings, target: Path) -> Iterator[str]:
    """Lines for what the new folder has. Raises ModelError with one line where it can't be made, and leaves nothing."""
    from engine.convert import conversion
    from engine.store.hub_cache import PICKLED_PATTERNS

    folder = _found(settings, more=PICKLED_PATTERNS, needs_modules=settings.models[0].needs_modules)
    done = conversion.convert(folder, target)
    if not done.without_network:
        print(
            "embedline: the weights were read in a process that could reach the network: this kernel or container "
            "permits no network namespace",
            file=sys.stderr,
        )
    return _lines(done)


def _lines(done: "Conversion") -> Iterator[str]:
    yield str(done.folder)
    for each in done.converted:
        size = f"{each.num_bytes / _MIB:,.1f} MiB"
        yield f"  {', '.join(each.files)}: {each.num_tensors:,} tensors, {size}"
    yield f"  {done.num_copied} more files as they were"
    if done.left_out:
        yield f"  left out: {', '.join(done.left_out)}"


def _classifier(settings: Settings, target: Path) -> Sequence[str]:
    """Lines for what the new folder has. Raises ModelError with one line where it can't be made, and leaves nothing."""
    from engine.convert import classifier

    done = classifier.convert(_found(settings), target, template=settings.models[0].template)
    return (
        str(done.folder),
        f"  {classifier.HEAD}: token {' less token '.join(map(str, done.entries))}",
        f"  embedline puts pairs into the template of {done.template}; with another server, the client must do that",
    )
