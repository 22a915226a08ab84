"""Finds a model's files, fetches them, and has weights that are pickles converted before any process is started.

No process of the server reads a pickle: a child of this one does, see engine.tools.convert.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from engine.store.model_source import ResolvedModel, resolve
from engine.tools.convert.cached import Progress, command, converted
from engine.tools.convert.needed import needed, patterns
from engine.types import ModelError
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.planning.compiled_cache import cache_folder

_MIB = 1 << 20
_NEVER = "never"


class NotConvertedError(ModelError):
    """A start would convert this model's weights first, and nothing was to be converted here."""


def find_files(
    model: ModelSettings, settings: Settings, *, needs_weights: bool, progress: Progress | None
) -> ResolvedModel:
    """The model's folder. If its weights are pickles, it is the copy in the cache, which is made if it is not there.

    Raises ModelError with one line; without `progress` NotConvertedError, instead of making a copy.
    """
    cache, token = settings.huggingface_hub_cache, settings.hf_token
    cache_dir = Path(cache) if cache else None
    options: dict[str, Any] = {"cache_dir": cache_dir, "token": token, "needs_modules": model.needs_modules}
    found = resolve(model.model_id, model.revision, **options)
    if not needs_weights or model.convert == _NEVER:
        return found
    if found.source.startswith("hub") and (more := patterns(found.path)):
        path = resolve(model.model_id, found.revision, more=more, **options).path
        found = dataclasses.replace(found, path=path)
    return without_pickles(found, settings, progress=progress)


def without_pickles(found: ResolvedModel, settings: Settings, *, progress: Progress | None) -> ResolvedModel:
    """The second half of `find_files`, for a folder on this machine."""
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
