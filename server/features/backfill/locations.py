"""Paths and URLs of IN and OUT; and the files of an input: which of them are data, and what changes with their content.

Local paths, s3:// and gs:// go through Arrow's own file systems; hf:// and whatever else fsspec knows through fsspec.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pyarrow.fs as pafs

from server.features.backfill.errors import RefusedJob
from wire.placeholder import placeholder

_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}
KINDS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}
_VERSIONS = ("ETag", "etag", "blob_id", "md5Hash", "mtime", "LastModified", "created")  # as file systems name it


def local_path(location: str) -> Path | None:
    """Returns None for a URL of another place than this machine's files."""
    scheme, separator, path = location.partition("://")
    if not separator:
        return Path(location)
    return Path(path) if scheme in ("file", "local") else None


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


def opened(location: str) -> tuple[Any, str]:
    """The file system of a path or a URL, Arrow's, and the path in it. Raises what the libraries raise."""
    local = local_path(location)
    if local is not None:
        return pafs.LocalFileSystem(), str(local.absolute())
    if urlsplit(location).scheme in ("s3", "gs", "gcs"):
        filesystem, path = pafs.FileSystem.from_uri(location)
        return filesystem, path
    filesystem, path = fsspec.core.url_to_fs(location)
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def files(filesystem: Any, path: str) -> list[str]:
    """The file, or those below the folder whose kind is known. Hidden ones, and those with an underscore, are not
    data. Raises RefusedJob, and what the libraries raise."""
    info, is_local = filesystem.get_file_info(path), isinstance(filesystem, pafs.LocalFileSystem)
    if is_local and (found := placeholder(Path(path))):
        raise RefusedJob(found)
    if info.type == pafs.FileType.NotFound:
        raise FileNotFoundError("there is nothing")
    if info.type == pafs.FileType.File:
        return [path] if kind(path) else []
    if info.type != pafs.FileType.Directory:
        raise RefusedJob("IN is no file and no folder; a pipe can't be read twice")
    if is_local:
        below = list(_below(path))
        _check_are_here(name for name in below if not _is_hidden(os.path.relpath(name, path)))
        for name in filter(kind, below):
            if filesystem.get_file_info(name).type == pafs.FileType.Unknown:
                raise RefusedJob(f"{name} is no file; a pipe can't be read twice")
    else:
        found = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
        below = [one.path for one in found if one.type == pafs.FileType.File]
    return sorted(name for name in below if kind(name) and not _is_hidden(os.path.relpath(name, path)))


def kind(path: str) -> str | None:
    """The kind that the file's name says; None where it is no data."""
    name = path.lower()
    ending = next((ending for ending in (".gz", ".zst", ".bz2") if name.endswith(ending)), "")
    found = KINDS.get(os.path.splitext(name.removesuffix(ending))[1])
    return None if ending and found in ("parquet", "arrow") else found


def state(filesystem: Any, path: str) -> tuple[int, str]:
    """Size, and what changes with the content."""
    info = filesystem.get_file_info(path)
    if info.type != pafs.FileType.File:
        raise FileNotFoundError("it is gone")
    if info.mtime_ns is not None:
        return info.size, str(info.mtime_ns)
    facts = filesystem.handler.fs.info(path) if isinstance(filesystem, pafs.PyFileSystem) else {}
    return info.size, next((str(facts[name]) for name in _VERSIONS if facts.get(name)), "")


def _check_are_here(names: Iterable[str]) -> None:
    """Raises RefusedJob where one is a placeholder of Git LFS, git-annex or DVC, in its place or beside it."""
    for name in names:
        file = name.removesuffix(".dvc")
        is_folder = file != name and not Path(file).suffix
        if (kind(file) or is_folder) and (found := placeholder(Path(file))):
            raise RefusedJob(found)


def _below(path: str) -> Iterator[str]:
    """The files of a folder of this machine, through links. Raises RefusedJob where a link leads to rows that are there
    already, as one in a circle, and OSError."""
    seen: dict[str, str] = {}
    for folder, folders, names in os.walk(path, followlinks=True, onerror=_raise):
        first = seen.setdefault(os.path.realpath(folder), folder)
        if first != folder:
            raise RefusedJob(f"IN has {first} once more, by a link, as {folder}: each row would be there twice")
        folders[:] = [name for name in folders if not _is_hidden(name)]
        yield from (os.path.join(folder, name) for name in names)


def _raise(error: OSError) -> None:
    raise OSError(f"{error.filename}: {error.strerror}")


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))
