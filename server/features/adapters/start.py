"""What a start does with the folder of an adapter: it merges it into its base, in its cache, or says that it would.

The base is what `base_model_name_or_path` of adapter_config.json names: a folder, a model that this server serves too,
or a repository on the hub. The first start that needs the merged copy makes it, others find it: see
server.features.made_copies.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from embedline.progress import Progress
from engine.convert.adapted import AdaptedPlan, adapter_folder, fill, plan
from engine.model.lora import Adapter, read_adapter
from engine.store.model_source import ResolvedModel, resolve
from engine.types import ModelError
from server.features.made_copies import NewCopy, cache_for, copy_of, name_of
from server.settings.model import ModelSettings
from server.settings.settings import Settings
from server.supervisor.model_files import NotConvertedError, find_files

_FOLDER = "merged"  # in the cache
_FORMAT = 1  # of a copy. Raise it when the same files would become others
_KEY = "base_model_name_or_path"
_INSTEAD = "merge it with PEFT's merge_and_unload, and serve what that saves"
_MIB = 1 << 20


def merged(found: ResolvedModel, settings: Settings, *, progress: Progress | None) -> ResolvedModel:
    """The copy in the cache where the folder holds an adapter. Raises ModelError as server.supervisor.model_files
    says."""
    folder = found.path
    own = adapter_folder(folder)
    if own is None:
        return found
    adapter = read_adapter(own)
    base = _base(folder, adapter, settings, progress=progress)
    planned = plan(folder, adapter, base.path)
    cache_dir = cache_for(settings, f"{folder} holds an adapter of {base.path}", _INSTEAD)
    path = copy_of(_new(folder, base.path, planned), cache_dir=cache_dir, progress=progress)
    if path is None:
        raise NotConvertedError(
            f"{folder} holds an adapter of {base.path}: a start merges them into its cache first "
            f"({planned.num_bytes / _MIB:,.0f} MiB)"
        )
    return dataclasses.replace(found, path=path, source=f"{found.source}, merged into {base.path} ({base.source})")


def _new(folder: Path, base: Path, planned: AdaptedPlan) -> NewCopy:
    return NewCopy(
        folder=folder,
        root=_FOLDER,
        format=_FORMAT,
        sources=planned.sources,
        num_bytes=planned.num_bytes,
        fill=lambda new, report: fill(new, planned, report=report),
        title=f"merging {name_of(folder)}",
        what=f"the merged weights of {folder}",
        begins=f"merging {folder} into {base}: {planned.merge.in_words}",
        ended=f"merged {folder}",
        instead=_INSTEAD,
    )


def _base(folder: Path, adapter: Adapter, settings: Settings, *, progress: Progress | None) -> ResolvedModel:
    """The base, with its weights as safetensors. folder: of the adapter's model. Raises ModelError."""
    where = f"{_KEY!r} in {adapter.config_file}"
    if not adapter.base:
        raise ModelError(f"{where} is empty: write the folder or the name of the adapter's base there")
    cache = settings.huggingface_hub_cache
    cache_dir = Path(cache) if cache else None
    for name, revision in _names(adapter, settings):
        try:
            found = resolve(name, revision, cache_dir=cache_dir, token=settings.hf_token, needs_modules=False)
        except (ModelError, OSError) as error:  # the latter: a name that can't be a file's
            reason = str(error).removeprefix("--model-id ")
            raise ModelError(f"{where} is {adapter.base!r}, which is not found: {reason}") from error
        if found.path == folder:  # it may be served by its base's name
            continue
        if adapter_folder(found.path) is not None:
            raise ModelError(f"{where} is {adapter.base!r}, which is an adapter, too")
        base = ModelSettings(model_id=name, revision=revision)
        return find_files(base, settings, needs_weights=True, progress=progress)
    raise ModelError(f"{where} names the adapter itself")


def _names(adapter: Adapter, settings: Settings) -> Iterator[tuple[str, str | None]]:
    """Names and revisions of what the base may be: a folder, a model that is served here, a repository."""
    path = os.path.expanduser(adapter.base)
    for place in (adapter.folder / path, path):
        if os.path.isdir(place):
            yield os.path.normpath(place), None
            return
    for model in settings.models:
        if adapter.base in (model.name, model.model_id):
            yield model.model_id, model.revision
    yield adapter.base, adapter.revision
