"""`embedline quantize`: a copy of a model with its linear layers in block FP8, as the TensorRT-LLM engine makes it.

It prints what each tensor lost. It starts no server.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.settings.precedence import settings_from

if TYPE_CHECKING:
    from engine.tensorrt_llm.quantize.job import Done

_MIB = 1 << 20
_MAX_ERROR = 0.03  # what rounding to e4m3 costs arbitrary weights is 0.026


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="The new folder: one that is not there yet, or is empty.")],
    **words: Any,
) -> None:
    """Make a model's copy whose linear layers are FP8, with a scale for each block of 128 by 128 numbers.

    It takes a CPU, no data and little memory. Unfinished work lies in OUT.partial: after a kill, the same command
    removes it and starts again. Prints what each tensor lost.
    """
    # Much that other commands do without, torch among it.
    from embedline.progress import shown
    from engine.store.model_source import resolve
    from engine.store.output_folder import new_folder
    from engine.tensorrt_llm.quantize import job
    from server.commands.model_copies import clean_exit_on_sigterm

    settings = settings_from({**words, "model_id": model}, os.environ)
    asked, cache = settings.models[0], settings.huggingface_hub_cache
    target = new_folder(Path(out))  # before anything is fetched
    with clean_exit_on_sigterm():
        cache_dir = Path(cache) if cache else None
        found = resolve(asked.model_id, asked.revision, cache_dir=cache_dir, token=settings.hf_token)
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


def _lines(done: "Done") -> Iterator[str]:
    yield str(done.folder)
    for name, error in done.errors.items():
        yield f"  {name}: {100 * error:.2f} %"
    least, most = 100 * min(done.errors.values()), 100 * max(done.errors.values())
    yield f"  {len(done.errors):,} tensors in FP8, relative RMS error {least:.2f} % to {most:.2f} %"
    yield f"  {done.num_plain:,} tensors as they were"
    yield f"  {done.num_bytes_before / _MIB:,.1f} MiB of weights have become {done.num_bytes / _MIB:,.1f} MiB"
    yield f"  {done.num_copied} more files as they were"
