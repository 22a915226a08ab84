"""Paths and URLs of IN and OUT."""

import os
import re
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from server.backfill.errors import RefusedJob

_LOCAL = ("file", "local")
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


def local_path(location: str) -> Path | None:
    """None for a URL of another place than this machine's files."""
    scheme, separator, path = location.partition("://")
    if not separator:
        return Path(location)
    return Path(path) if scheme in _LOCAL else None


def check_no_secrets(location: str, name: str) -> None:
    """Raises RefusedJob for a URL with a password. It would be in the list of processes, and in the manifest."""
    if _PASSWORD.search(location):
        raise RefusedJob(f"{name} must have no password in its URL: how a store is reached is said by the environment")


def lies_in(out: str, location: str) -> bool:
    """Whether the first is inside of the second, or is it."""
    path, within = local_path(out), local_path(location)
    if path is not None and within is not None:
        return os.path.isdir(within) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within))
    if path is not None or within is not None:
        return False
    (scheme, out_key), (of, key) = _split(out), _split(location)
    return scheme == of and out_key.is_relative_to(key)


def _split(url: str) -> tuple[str, PurePosixPath]:
    parts = urlsplit(url)
    return _SAME.get(parts.scheme, parts.scheme), PurePosixPath(f"{parts.netloc}/{parts.path.strip('/')}")
