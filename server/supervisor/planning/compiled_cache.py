"""The folder where engines keep compiled models. It is made and tried before any process is started."""

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from engine.store import cache
from engine.store.folder_rights import remedy
from server.settings.flag import SettingsError

_OFF = "off"
_WRITTEN_TO = "compiled"  # the folder in it that engines make and use
_CACHES = (_WRITTEN_TO, "fused")  # all that engine.store.cache keeps; the folder around them may hold a user's files

logger = logging.getLogger("embedline.server")


def cache_folder(asked: str | None, environment: Mapping[str, str]) -> str | None:
    """An absolute path. None if nothing is to be kept, or if the default folder can't be written to.

    Raises SettingsError where the one that was asked for can't be written to.
    """
    if asked == _OFF:
        return None
    try:
        folder = Path(asked).expanduser() if asked else _default(environment)
    except RuntimeError:
        raise SettingsError("--compiled-cache starts with a home folder that is unknown: give a full path") from None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / _WRITTEN_TO).mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder / _WRITTEN_TO):
            return str(folder.absolute())
    except OSError as error:
        if asked:
            instead = f"{remedy(error)}; off keeps no cache" if remedy(error) else ""
            raise SettingsError(f"--compiled-cache can't be written to: {folder}: {error.strerror}{instead}") from None
        logger.warning("no cache of compiled models: %s: %s%s", folder, error.strerror, remedy(error))
        return None


def remove_leftovers(folder: str | None) -> None:
    """Remove what engines were making when they were killed. `folder`: of `cache_folder`."""
    for each in (Path(folder, name) for name in _CACHES) if folder is not None else ():
        cache.remove_leftovers(each)


def _default(environment: Mapping[str, str]) -> Path:
    """By the XDG Base Directory Specification: a relative XDG_CACHE_HOME is ignored."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path(environment.get("HOME") or "/", ".cache")) / "embedline"
