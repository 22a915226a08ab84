"""Copies of models that a start makes in its cache: other starts find them. Knows no content.

engine.store.copies says what their folder holds, and how processes wait for each other. A copy is KEY/NAME: the folder
keeps the model's own name, by which some models are recognised. KEY/manifest.json has the digests of its files.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from embedline.progress import Progress, Report
from engine.machine.failures import one_line
from engine.store import copies, fingerprint, manifest
from engine.types import ModelError
from server.settings.flag import SettingsError
from server.settings.settings import Settings
from server.supervisor.model_files import cache_folder
from wire.files import remedy

logger = logging.getLogger("embedline.engine")

_MAX_OTHERS = 8  # copies of other models that no process uses
_MAX_WHOLE = 4 << 20  # bytes: larger files of the model count by samples
_RESERVE = 256 << 20  # bytes that stay free on the disk
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCopy:
    """What a copy is made of, and how."""

    folder: Path  # the model's
    root: str  # the folder of such copies in the cache
    format: int  # counted up when the same files would become others
    sources: Mapping[str, Path]  # all files that decide what is made, by any names
    num_bytes: int  # of the copy, or a little more
    fill: Callable[[Path, Report], None]  # fills the empty folder. Raises ModelError and OSError
    title: str  # for progress
    what: str  # its name in messages and in the log, where a line says what begins and another what has ended
    begins: str
    ended: str
    instead: str  # what people can do where there is no room: the end of a message


def copy_of(new: NewCopy, *, cache_dir: str, progress: Progress | None) -> Path | None:
    """The copy. It is not removed while this process lives.

    Without `progress` nothing is made: None where there is no copy. Raises ModelError with one line: what `fill`
    refuses, or that there is no room.
    """
    root = Path(cache_dir, new.root)
    try:
        copy = root / _key(new)
        if progress is None and not copy.is_dir():
            return None
        is_there = copies.made_once(
            copy,
            new.what,
            check=partial(manifest.read, copy),
            make=None if progress is None else partial(_make, new, copy, progress),
            most_others=_MAX_OTHERS,
        )
    except OSError as error:
        raise ModelError(
            f"{new.what} can't be kept in {root}: {one_line(error)}{remedy(error)}; {_instead(new)}"
        ) from error
    return copy / name_of(new.folder) if is_there else None


def name_of(folder: Path) -> str:
    """The model's: of its folder, or of its repository in the hub's cache."""
    return (folder.parents[1].name if folder.parent.name == "snapshots" else folder.name) or "model"


def cache_for(settings: Settings, why: str, instead: str) -> str:
    """The cache that a copy needs. why: that it does; instead: as in NewCopy. Raises ModelError where there is none."""
    reason = "--compiled-cache is off" if settings.compiled_cache == "off" else "there is no cache of compiled models"
    try:
        cache_dir = cache_folder(settings.compiled_cache, os.environ)
    except SettingsError as error:
        reason, cache_dir = str(error), None
    if cache_dir is None:
        raise ModelError(f"{why}, and there is no folder for a copy ({reason}): {instead}")
    return cache_dir


def _instead(new: NewCopy) -> str:
    return f"give another folder by --compiled-cache, or {new.instead}"


def _key(new: NewCopy) -> str:
    """32 hexadecimal digits for the model's name and all files that go into the copy. Raises OSError.

    A file counts by its bytes, a large one by samples and the time of its last change: see engine.store.fingerprint.
    """
    parts = [new.format, name_of(new.folder), {name: _identity(path) for name, path in new.sources.items()}]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _identity(file: Path) -> str:
    status = file.stat()
    if status.st_size <= _MAX_WHOLE:
        return fingerprint.whole(file)
    return f"{status.st_mtime_ns} {fingerprint.sampled(file)}"


def _make(new: NewCopy, copy: Path, progress: Progress) -> None:
    _check_room(new, copy.parent)
    logger.info("%s, in %s; later starts find them", new.begins, copy)
    began, unfinished = time.monotonic(), copies.unfinished(copy)
    try:
        folder = unfinished / name_of(new.folder)
        folder.mkdir(parents=True)
        with progress(new.title) as report:
            new.fill(folder, report)
        manifest.write(unfinished, {"from": str(new.folder)})
        unfinished.rename(copy)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # gone by now, unless something went wrong
    logger.info("%s in %.1f s", new.ended, time.monotonic() - began)


def _check_room(new: NewCopy, root: Path) -> None:
    """Raises ModelError where the disk has too little of it."""
    wanted, free = new.num_bytes + _RESERVE, shutil.disk_usage(root).free
    if wanted > free:
        raise ModelError(
            f"{new.what} need {wanted / _MIB:,.0f} MiB in {root}, where {free / _MIB:,.0f} MiB are free: make room, "
            f"{_instead(new)}"
        )
