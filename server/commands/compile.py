"""`embedline compile`: a model compiled for any CPU, in a new folder that starts elsewhere take. Starts no server."""

import dataclasses
from pathlib import Path

from engine import registry
from engine.machine import cores
from engine.machine.cuda_driver import Cuda
from engine.tools.convert.conversion import new_folder, unfinished
from server.commands.convert import clean_exit_on_sigterm
from server.commands.progress import shown
from server.settings.settings import Settings
from server.supervisor.planning.engine_options import engine_options
from server.supervisor.planning.model_plan import plan_model

_MIB = 1 << 20


def compile_model(settings: Settings, out: str) -> int:
    """Make the folder `out` from the first model and print what it is. Returns the exit code.

    Raises SettingsError and ModelError with one line where that can't be done, and leaves nothing then.
    """
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
