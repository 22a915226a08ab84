"""The cache of compiled models: what an engine made from a model, in a folder named by its key. Knows no content.

An entry is written into a new folder, which is renamed when it is whole. So processes may start at the same time, and a
killed one leaves no half entry. Files of an entry are never changed: a library may have mapped them into memory. A
process that finds or makes an entry keeps it from being removed, by a lock on its folder that lasts as long as the
process. What a killed process left has no lock, and the next start removes it. A folder that users other than this one
and root can write into is not used.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.machine.failures import one_line
from engine.store import copies, manifest
from engine.store.manifest import Json
from engine.types import MAX_CACHE_BYTES, ModelError
from wire.files import check_owner
from wire.frames import ProtocolError

logger = logging.getLogger("embedline.engine")

MALFORMED = (AttributeError, KeyError, TypeError, ValueError, ModelError, ProtocolError)  # of what is no entry of ours

_MAX_ENTRIES = 32  # by default
_NEW, _OLD = ".new-", ".old-"  # folders that are being written or removed
_NUM_TRIES = 3  # to make one that no other process removes before it is locked
_MAX_UNLOCKED_SECONDS = 24 * 3600  # of one on a disk without locks, whose maker may live
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the cache whose files are as they were written."""

    folder: Path
    facts: Json


class Cache:
    """Raises nothing when the disk fails: the model is then made at each start."""

    def __init__(self, root: Path | None, *, max_entries: int = _MAX_ENTRIES, max_bytes: int | None = None) -> None:
        """`root`: None = nothing is kept. `max_bytes`: None = MAX_CACHE_BYTES. Entries above either limit are removed
        if no process uses them, those that were not used for longest first."""
        self._root = root
        self._max_entries = max_entries
        self._max_bytes = MAX_CACHE_BYTES if max_bytes is None else max_bytes

    def read(
        self, key: str, decode: Callable[[Entry], _T], *, damaged: tuple[type[Exception], ...] = MALFORMED
    ) -> _T | None:
        """What `decode` makes of the entry. None where there is none, or it is damaged; then it is removed.
        damaged: what `decode` raises then."""
        entry = self.find(key)
        try:
            return None if entry is None else decode(entry)
        except damaged as error:
            self.discard(key, why=one_line(error))
            return None

    def find(self, key: str) -> Entry | None:
        """The entry. None where there is none, or it is damaged; then it is removed."""
        if self._root is None or not self._is_ours(self._root):
            return None
        remove_leftovers(self._root)
        if not os.path.isdir(self._root / key):
            return None
        try:
            check_owner(self._root / key)
            with contextlib.suppress(OSError):  # a disk without locks
                copies.use(self._root / key)
            facts = manifest.read(self._root / key)
            return Entry(self._root / key, facts)
        except Exception as error:  # a damaged manifest can cause any error
            self.discard(key, why=one_line(error))
            return None

    def discard(self, key: str, *, why: str) -> None:
        """Remove an entry that can't be used."""
        assert self._root is not None
        logger.warning("the cached model in %s is not used: %s", self._root / key, why)
        with contextlib.suppress(OSError):
            gone = Path(tempfile.mkdtemp(prefix=_OLD, dir=self._root))
            (self._root / key).rename(gone / key)
            shutil.rmtree(gone)

    def can_keep(self) -> bool:
        """Whether an entry can probably be put into it."""
        return self._writable_root() is not None

    @contextlib.contextmanager
    def new_folder(self, num_bytes: int = 0) -> Iterator[Path]:
        """An empty folder with room for so much, for `put`, or removed at the end. Where the cache has no room it is a
        temporary one. Raises ModelError where none can be made."""
        try:
            folder, lock = _new_folder(self._root_with_room(num_bytes))
        except OSError as error:
            raise ModelError(f"there is no folder to make the model in: {one_line(error)}") from error
        try:
            check_room(folder, num_bytes)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)

    def _root_with_room(self, num_bytes: int) -> Path | None:
        root = self._writable_root()
        try:
            if root is not None:
                check_room(root, num_bytes)
        except ModelError as error:
            logger.warning("the model is not cached: %s", error)
            return None
        return root

    def put(self, key: str, folder: Path, facts: Json) -> None:
        """Keep the content of a new folder, which is gone afterwards. An entry that is there already stays."""
        if self._root is None or folder.parent != self._root:
            return
        try:
            manifest.write(folder, facts)
            with contextlib.suppress(OSError):  # a disk without locks
                copies.use(folder)
            folder.rename(self._root / key)
        except OSError as error:
            if not os.path.isdir(self._root / key):
                logger.warning("the model is not cached: %s", one_line(error))
        self._prune()

    def _writable_root(self) -> Path | None:
        """A root to write in; None = the temporary folder."""
        if self._root is None:
            return None
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours(self._root):
                return None
            with tempfile.TemporaryDirectory(prefix=_NEW, dir=self._root):
                return self._root
        except OSError as error:
            logger.warning("models are not cached: %s", one_line(error))
            return None

    def _is_ours(self, root: Path) -> bool:
        """False, after one warning, where other users could write into it. The cache is not used then."""
        try:
            check_owner(root)
        except (FileNotFoundError, NotADirectoryError):
            return True  # to be made, as far as that goes
        except OSError as error:
            logger.warning("the cache in %s is not used: %s", root, one_line(error))
            self._root = None
        return self._root is not None

    def _prune(self) -> None:
        """Remove the oldest entries above the limits."""
        assert self._root is not None
        with contextlib.suppress(OSError):
            entries = sorted((file.parent for file in self._root.glob(f"[!.]*/{manifest.FILE}")), key=copies.last_use)
            sizes = [manifest.size_of(entry) for entry in entries]
            num_left, bytes_left = len(entries), sum(sizes)
            for entry, num_bytes in zip(entries, sizes, strict=True):
                if num_left <= self._max_entries and bytes_left <= self._max_bytes:
                    return
                with contextlib.suppress(OSError):
                    copies.remove_if_unused(entry)
                    num_left, bytes_left = num_left - 1, bytes_left - num_bytes


def remove_leftovers(root: Path) -> None:
    """Remove what killed processes left unfinished in the folder of a cache."""
    for folder in (folder for prefix in (_NEW, _OLD) for folder in root.glob(f"{prefix}*")):
        try:
            copies.remove_if_unused(folder)
        except BlockingIOError:
            pass  # its maker lives
        except OSError:  # a disk without locks, or another process was first
            with contextlib.suppress(OSError):
                if folder.stat().st_mtime < time.time() - _MAX_UNLOCKED_SECONDS:
                    shutil.rmtree(folder)


def _new_folder(root: Path | None) -> tuple[Path, int | None]:
    """A new folder and the descriptor of its lock, which lasts until it is closed or this process ends; None = a disk
    without locks. Raises OSError."""
    for _ in range(_NUM_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=_NEW, dir=root))
        try:
            return folder, copies.lock(folder)
        except FileNotFoundError:
            continue  # another process took it for a leftover
        except OSError:
            return folder, None
    raise FileNotFoundError("other processes remove new folders")


def check_room(folder: Path, num_bytes: int) -> None:
    """Raises ModelError. What a library writes to a full disk it may cut short without an error."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ModelError(f"it takes up to {num_bytes >> 20} MiB, and {free >> 20} MiB are free in {folder}")
