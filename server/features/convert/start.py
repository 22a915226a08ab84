"""What a start does with weights that are pickles: it converts them into its cache, or says that it would.

The first start that needs a copy of a model's folder without pickles makes it, others find it: engine.store.copies says
what their folder holds, and how processes wait for each other. A copy is KEY/NAME: the folder
keeps the model's own name, by which some models are recognised. KEY/manifest.json has the digests of its files.
"""

import dataclasses
import hashlib
import json
import logging
import os
import shlex
import shutil
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from embedline.progress import Progress
from engine.convert.conversion import fill
from engine.convert.plan import ConversionPlan, needed
from engine.machine.failures import one_line
from engine.store import copies, fingerprint, manifest
from engine.store.model_source import ResolvedModel
from engine.types import ModelError
from server.settings.flag import SettingsError
from server.settings.settings import Settings
from server.supervisor.model_files import NotConvertedError, cache_folder
from wire.files import remedy

logger = logging.getLogger("embedline.engine")

_FOLDER = "converted"  # in the folder that was given
_MAX_OTHERS = 8  # copies of other models that no process uses
_FORMAT = 1  # of a copy. Raise it when the same pickles would become other files
_MAX_WHOLE = 4 << 20  # bytes: larger files of the model count by samples
_SHARD_BYTES = 512 << 20  # a shard is in memory before it is written, and progress is seen by whole shards
_RESERVE = 256 << 20  # bytes that stay free on the disk
_MIB = 1 << 20


def without_pickles(found: ResolvedModel, settings: Settings, *, progress: Progress | None) -> ResolvedModel:
    """The copy in the cache where the folder has pickles. Raises ModelError as server.supervisor.model_files says."""
    folder, planned = found.path, needed(found.path)
    if planned is None:
        return found
    names = ", ".join(name for target in planned.targets for name in target.sources)
    path = converted(folder, planned, cache_dir=_cache_dir(folder, names, settings), progress=progress)
    if path is None:
        lacks = "" if find_spec("torch") else "; that needs torch: pip install 'embedline[server]'"
        raise NotConvertedError(
            f"{folder} has weights that are pickles ({names}, {planned.num_source_bytes / _MIB:,.0f} MiB): a start "
            f"converts them into its cache first, and so does {command(folder)}{lacks}"
        )
    return dataclasses.replace(found, path=path, source=f"{found.source}, {names} converted to safetensors")


def _cache_dir(folder: Path, names: str, settings: Settings) -> str:
    """The cache for the copy. Raises ModelError where there is none."""
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


def converted(folder: Path, planned: ConversionPlan, *, cache_dir: str, progress: Progress | None) -> Path | None:
    """The copy of this folder. It is not removed while this process lives.

    Without `progress` nothing is made: None where there is no copy. Raises ModelError with one line: what
    engine.convert.conversion refuses, or that there is no room.
    """
    root = Path(cache_dir, _FOLDER)
    try:
        copy = root / _key(folder, planned)
        if progress is None and not copy.is_dir():
            return None
        is_there = copies.made_once(
            copy,
            f"the converted weights of {folder}",
            check=partial(manifest.read, copy),
            make=None if progress is None else partial(_make, folder, planned, copy, progress),
            most_others=_MAX_OTHERS,
        )
    except OSError as error:
        raise ModelError(
            f"no converted copy of {folder} can be kept in {root}: {one_line(error)}{remedy(error)}; {_instead(folder)}"
        ) from error
    return copy / _name(folder) if is_there else None


def _instead(folder: Path) -> str:
    """A remedy where there is no room: the end of a message."""
    return f"give another folder by --compiled-cache, or convert it yourself: {command(folder)}"


def command(folder: Path) -> str:
    """The command that converts this folder."""
    return f"embedline convert {shlex.quote(str(folder))} OUT"


def _name(folder: Path) -> str:
    """The model's: of its folder, or of its repository in the hub's cache."""
    return (folder.parents[1].name if folder.parent.name == "snapshots" else folder.name) or "model"


def _key(folder: Path, planned: ConversionPlan) -> str:
    """32 hexadecimal digits for the model's name and all files that go into the copy. Raises OSError.

    A file counts by its bytes, a large one by samples and the time of its last change: see engine.store.fingerprint.
    """
    sources = {name: path for target in planned.targets for name, path in target.sources.items()}
    parts = [_FORMAT, _name(folder), {name: _identity(path) for name, path in (sources | planned.copied).items()}]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _identity(file: Path) -> str:
    status = file.stat()
    if status.st_size <= _MAX_WHOLE:
        return fingerprint.whole(file)
    return f"{status.st_mtime_ns} {fingerprint.sampled(file)}"


def _make(folder: Path, planned: ConversionPlan, copy: Path, progress: Progress) -> None:
    _check_room(folder, planned, copy.parent)
    names = ", ".join(name for target in planned.targets for name in target.sources)
    size = f"{planned.num_source_bytes / _MIB:,.0f} MiB"
    logger.info("converting %s of %s (%s) to safetensors, in %s; later starts find them", names, folder, size, copy)
    began, unfinished = time.monotonic(), copies.unfinished(copy)
    try:
        new = unfinished / _name(folder)
        new.mkdir(parents=True)
        with progress(f"converting {_name(folder)}") as report:
            answer = fill(new, planned, max_shard_bytes=_SHARD_BYTES, report=report)
        manifest.write(unfinished, {"from": str(folder)})
        unfinished.rename(copy)
    except ModelError as error:
        raise ModelError(f"{folder} can't be converted: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # gone by now, unless something went wrong
    logger.info("converted %s in %.1f s", folder, time.monotonic() - began)
    if not answer.without_network:
        logger.warning(
            "the weights of %s were read in a process that could reach the network: this kernel or container permits "
            "no network namespace", folder
        )  # fmt: skip


def _check_room(folder: Path, planned: ConversionPlan, root: Path) -> None:
    """Raises ModelError where the disk has too little of it."""
    wanted = planned.num_source_bytes + planned.num_copied_bytes + _RESERVE
    free = shutil.disk_usage(root).free
    if wanted > free:
        raise ModelError(
            f"the converted weights of {folder} need {wanted / _MIB:,.0f} MiB in {root}, where {free / _MIB:,.0f} MiB "
            f"are free: make room, {_instead(folder)}"
        )
