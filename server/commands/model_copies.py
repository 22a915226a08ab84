"""`embedline compile`: a model's graph, compiled for any CPU, in a new folder, which starts elsewhere take.

It starts no server.
"""

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from embedline.progress import shown
from engine.store.output_folder import new_folder, unfinished
from server.settings.settings import Settings

_MIB = 1 << 20


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
