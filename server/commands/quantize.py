"""`embedline quantize`: a model's linear layers as FP8 in a new folder. Starts no server."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engine.store.model_source import resolve
from engine.tools.convert.conversion import new_folder
from server.commands.convert import clean_exit_on_sigterm
from server.commands.progress import shown
from server.settings.settings import Settings

if TYPE_CHECKING:
    from engine.tools.quantize.job import Done

_MIB = 1 << 20
_MAX_ERROR = 0.03  # what rounding to e4m3 costs arbitrary weights is 0.026


def quantize(settings: Settings, out: str) -> int:
    """Make the folder `out` from the first model and print what each tensor lost. Returns the exit code.

    Raises ModelError with one line where that can't be done, and leaves nothing then.
    """
    from engine.tools.quantize import job  # imports torch

    model, cache = settings.models[0], settings.huggingface_hub_cache
    target = new_folder(Path(out))  # before anything is fetched
    with clean_exit_on_sigterm():
        cache_dir = Path(cache) if cache else None
        found = resolve(model.model_id, model.revision, cache_dir=cache_dir, token=settings.hf_token)
        with shown("quantizing") as report:
            done = job.quantize(found.path, target, report=report)
    print("\n".join(_lines(done)))
    large = [name for name, error in done.errors.items() if error > _MAX_ERROR]
    if large:
        print(
            f"embedline: {len(large)} of them lost more than {100 * _MAX_ERROR:g} %, which is unusual: compare "
            "the model's rows with the plain model's before you use it",
            file=sys.stderr,
        )
    return 0


def _lines(done: "Done") -> Iterator[str]:
    yield str(done.folder)
    for name, error in done.errors.items():
        yield f"  {name}: {100 * error:.2f} %"
    least, most = 100 * min(done.errors.values()), 100 * max(done.errors.values())
    yield f"  {len(done.errors):,} tensors in FP8, relative RMS error {least:.2f} % to {most:.2f} %"
    yield f"  {done.num_plain:,} tensors as they were"
    yield f"  {done.num_bytes_before / _MIB:,.1f} MiB of weights have become {done.num_bytes / _MIB:,.1f} MiB"
    yield f"  {done.num_copied} more files as they were"
