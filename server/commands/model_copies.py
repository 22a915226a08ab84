"""`embedline quantize` and `compile`: a copy of a model in a new folder. They start no server.

The copy has linear layers as FP8, or a graph compiled for any CPU, which starts elsewhere take.
"""

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from embedline.progress import shown
from engine.store.model_source import resolve
from engine.store.output_folder import new_folder, unfinished
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
    print("\n".join(_quantization_lines(done)))
    large = [name for name, error in done.errors.items() if error > _MAX_ERROR]
    if large:
        print(
            f"embedline: {len(large)} of them lost more than {100 * _MAX_ERROR:g} %, which is unusual: compare "
            "the model's rows with the plain model's before you use it",
            file=sys.stderr,
        )
    return 0


def _quantization_lines(done: "Done") -> Iterator[str]:
    yield str(done.folder)
    for name, error in done.errors.items():
        yield f"  {name}: {100 * error:.2f} %"
    least, most = 100 * min(done.errors.values()), 100 * max(done.errors.values())
    yield f"  {len(done.errors):,} tensors in FP8, relative RMS error {least:.2f} % to {most:.2f} %"
    yield f"  {done.num_plain:,} tensors as they were"
    yield f"  {done.num_bytes_before / _MIB:,.1f} MiB of weights have become {done.num_bytes / _MIB:,.1f} MiB"
    yield f"  {done.num_copied} more files as they were"


def compile_model(settings: Settings, out: str) -> int:
    """Make the folder `out` from the first model and print what it is. Returns the exit code.

    Raises SettingsError and ModelError with one line where that can't be done, and leaves nothing then.
    """
    # Much that the others do without.
    from engine import registry
    from engine.machine import cores
    from engine.machine.cuda_driver import Cuda
    from server.supervisor.model_plan import engine_options, plan_model

    target = new_folder(Path(out))  # before anything is fetched
    model = dataclasses.replace(
        settings.models[0], engine=registry.OPENVINO, devices=registry.CPU, dtype="auto", compiled_model=None
    )
    with clean_exit_on_sigterm():
        plan = plan_model(model, settings, cuda=Cuda, progress=shown)
        options = engine_options(plan, registry.CPU, cache_dir=None, num_threads=settings.cpu_threads or cores.usable())
        from engine.cpu import loading

        with unfinished(target) as new:
            key, facts = loading.export(options, new)
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{target}: {size / _MIB:,.1f} MiB\n  key {key}")
    for note in facts.notes:
        print(f"  {note}")
    return 0


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
