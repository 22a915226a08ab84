"""`embedline convert`: a model's pickled weights as safetensors in a new folder. Starts no server."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from engine.store.hub_cache import PICKLED_PATTERNS
from engine.store.model_source import resolve
from engine.tools.convert import classifier, conversion
from engine.tools.convert.conversion import Conversion
from server.settings.settings import Settings

_MIB = 1 << 20


def convert(settings: Settings, out: str) -> int:
    """Make the folder `out` from the first model and print what it has. Returns the exit code.

    Raises ModelError with one line where that can't be done, and leaves nothing then.
    """
    model, cache = settings.models[0], settings.huggingface_hub_cache
    new_folder = conversion.new_folder(Path(out))  # before anything is fetched
    with clean_exit_on_sigterm():
        cache_dir = Path(cache) if cache else None
        found = resolve(
            model.model_id,
            model.revision,
            cache_dir=cache_dir,
            token=settings.hf_token,
            more=PICKLED_PATTERNS,
            needs_modules=model.needs_modules,
        )
        done = conversion.convert(found.path, new_folder)
    if not done.without_network:
        print(
            "embedline: the weights were read in a process that could reach the network: this kernel or container "
            "permits no network namespace",
            file=sys.stderr,
        )
    print("\n".join(_lines(done)))
    return 0


def convert_to_classifier(settings: Settings, out: str) -> int:
    """Make the folder `out` from the first model, a generative reranker, and print what it has. Returns the exit code.

    Raises ModelError with one line where that can't be done, and leaves nothing then.
    """
    model, cache = settings.models[0], settings.huggingface_hub_cache
    new_folder = conversion.new_folder(Path(out))
    with clean_exit_on_sigterm():
        cache_dir = Path(cache) if cache else None
        found = resolve(model.model_id, model.revision, cache_dir=cache_dir, token=settings.hf_token)
        done = classifier.convert(found.path, new_folder, template=model.template)
    print(done.folder)
    print(f"  {classifier.HEAD}: token {' less token '.join(map(str, done.entries))}")
    print(f"  embedline puts pairs into the template of {done.template}; with another server, the client must do that")
    return 0


def _lines(done: Conversion) -> Iterator[str]:
    yield str(done.folder)
    for each in done.converted:
        size = f"{each.num_bytes / _MIB:,.1f} MiB"
        yield f"  {', '.join(each.files)}: {each.num_tensors:,} tensors, {size}"
    yield f"  {done.num_copied} more files as they were"
    if done.left_out:
        yield f"  left out: {', '.join(done.left_out)}"


@contextlib.contextmanager
def clean_exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process like an exception, so that unfinished files are removed."""
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)
