"""What a start does with weights that are pickles: it converts them into its cache, or says that it would."""

import dataclasses
import os
from pathlib import Path

from embedline.progress import Progress
from engine.store.model_source import ResolvedModel
from engine.tools.convert.cached import command, converted
from engine.tools.convert.plan import needed
from engine.types import ModelError
from server.settings.flag import SettingsError
from server.settings.settings import Settings
from server.supervisor.model_files import NotConvertedError, cache_folder

_MIB = 1 << 20


def without_pickles(found: ResolvedModel, settings: Settings, *, progress: Progress | None) -> ResolvedModel:
    """The copy in the cache where the folder has pickles. Raises ModelError as server.supervisor.model_files says."""
    folder, planned = found.path, needed(found.path)
    if planned is None:
        return found
    names = ", ".join(name for target in planned.targets for name in target.sources)
    path = converted(folder, planned, cache_dir=_cache_dir(folder, names, settings), progress=progress)
    if path is None:
        raise NotConvertedError(
            f"{folder} has weights that are pickles ({names}, {planned.num_source_bytes / _MIB:,.0f} MiB): a start "
            f"converts them into its cache first, and so does {command(folder)}"
        )
    return dataclasses.replace(found, path=path, source=f"{found.source}, {names} converted to safetensors")


def _cache_dir(folder: Path, names: str, settings: Settings) -> str:
    """Raises ModelError where there is none."""
    reason = "--compiled-cache is off" if settings.compiled_cache == "off" else "there is no cache of compiled models"
    try:
        cache_dir = cache_folder(settings.compiled_cache, os.environ)
    except SettingsError as error:
        reason, cache_dir = str(error), None
    if cache_dir is None:
        raise ModelError(
            f"{folder} has weights that are pickles ({names}), and there is no folder for a converted copy ({reason}): "
            f"{command(folder)}"
        )
    return cache_dir
