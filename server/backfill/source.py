"""The input of a job: which files there are, of which kind, and their rows as one sequence.

Local paths, s3:// and gs:// go through Arrow's own file systems; hf:// and whatever else fsspec knows through fsspec.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pyarrow.fs as pafs

from server.backfill.columns import ArrowRows, ParquetRows
from server.backfill.errors import BackfillError, RefusedJob, in_words
from server.backfill.lines import LineRows
from server.backfill.locations import check_no_secrets
from server.backfill.rows import Rows

_KINDS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}
_COMPRESSED = (".gz", ".zst", ".bz2")
_READERS: dict[str, Any] = {
    "parquet": ParquetRows,
    "arrow": ArrowRows,
    "jsonl": LineRows,
    "csv": partial(LineRows, is_csv=True),
}
_ARROWS_OWN = ("s3", "gs", "gcs")
_VERSIONS = ("ETag", "etag", "blob_id", "md5Hash", "mtime", "LastModified", "created")  # as file systems name it


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was when the job was planned."""

    path: str
    size: int  # bytes
    version: str  # changes with the content: nanoseconds of the last change, or an etag
    num_rows: int
    id_type: str  # Arrow's name; "" = there is no column for ids


class Source:
    """All rows of the input, numbered through its files in the order of their names."""

    def __init__(self, location: str, *, column: str, id_column: str | None) -> None:
        """Raises RefusedJob where nothing can be read there."""
        check_no_secrets(location, "IN")
        self._columns = {"column": column, "id_column": id_column}
        try:
            self._filesystem, path = _opened(location)
            self._found = _files(self._filesystem, path)
        except Exception as error:  # every store's library has errors of its own, here and below
            raise RefusedJob(f"IN can't be read: {in_words(error)}") from None
        kinds = {_kind(path) for path in self._found}
        if not self._found or len(kinds) != 1:
            what = f"files of several kinds: {', '.join(sorted(filter(None, kinds)))}" if kinds else "no such file"
            raise RefusedJob(f"IN has {what}; known are {', '.join(_KINDS)}")
        self.kind = str(kinds.pop())
        self.files: Sequence[InputFile] = ()

    def plan(self, known: Sequence[InputFile] = ()) -> None:
        """Look at every file. Those that are as they are `known` are not counted again. Raises RefusedJob for files
        that can't be read, lack a column, or differ in the type of their ids."""
        counted = {file.path: file for file in known}
        self.files = [self._planned(path, counted.get(path)) for path in self._found]
        for file in self.files:
            if file.id_type != self.files[0].id_type:
                raise RefusedJob(f"{file.path} has ids of {file.id_type} where {self.files[0].path} has others")

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def id_type(self) -> str:
        """Arrow's name for the type of the ids that are written; without a column for them, rows are numbered."""
        return self.files[0].id_type or "int64"

    def _planned(self, path: str, known: InputFile | None) -> InputFile:
        try:
            size, version = _state(self._filesystem, path)
            if known is not None and (known.size, known.version) == (size, version):
                return known
            reader = self._reader(path)
            return InputFile(path, size, version, reader.num_rows(), reader.id_type())
        except Exception as error:
            raise RefusedJob(f"{path} {in_words(error)}") from None

    def _reader(self, path: str) -> Any:
        return _READERS[self.kind](self._filesystem, path, **self._columns)

    def read(self, start: int) -> Iterator[Rows]:
        """From this row on. Raises BackfillError where a file is not what it was."""
        first = 0
        for file in self.files:
            stop = first + file.num_rows
            if start < stop:
                yield from self._of(file, first, max(0, start - first))
            first = stop

    def _of(self, file: InputFile, first: int, start: int) -> Iterator[Rows]:
        """`first`: the number of the file's first row in the job; `start`: the first row of the file that is wanted."""
        try:
            self._check(file)
            for rows in self._reader(file.path).read(start):
                ids = rows.ids if file.id_type else range(first + start, first + start + len(rows))
                start += len(rows)
                yield Rows(ids, rows.texts)
        except BackfillError:
            raise
        except Exception as error:
            raise BackfillError(f"{file.path} can't be read: {in_words(error)}") from None
        if start != file.num_rows:
            raise BackfillError(f"{file.path} has changed since the job was planned")

    def check(self, rows: range) -> None:
        """Raises BackfillError where a file that these rows come from has changed."""
        first = 0
        for file in self.files:
            if first < rows.stop and rows.start < first + file.num_rows:
                self._check(file)
            first += file.num_rows

    def _check(self, file: InputFile) -> None:
        try:
            state = _state(self._filesystem, file.path)
        except Exception as error:
            raise BackfillError(f"{file.path} can't be read: {in_words(error)}") from None
        if state != (file.size, file.version):
            raise BackfillError(f"{file.path} has changed since the job was planned")


def _opened(location: str) -> tuple[Any, str]:
    scheme = urlsplit(location).scheme if "://" in location else ""
    if not scheme:
        return pafs.LocalFileSystem(), str(Path(location).absolute())
    if scheme in _ARROWS_OWN:
        filesystem, path = pafs.FileSystem.from_uri(location)
        return filesystem, path
    filesystem, path = fsspec.core.url_to_fs(location)
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def _files(filesystem: Any, path: str) -> list[str]:
    """The file, or those below the folder whose kind is known. Hidden ones, and those with an underscore, are not
    data."""
    info = filesystem.get_file_info(path)
    if info.type == pafs.FileType.NotFound:
        raise FileNotFoundError("there is nothing")
    if info.type == pafs.FileType.File:
        return [path] if _kind(path) else []
    below = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    names = [one.path for one in below if one.type == pafs.FileType.File and _kind(one.path)]
    return sorted(name for name in names if not _is_hidden(os.path.relpath(name, path)))


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _kind(path: str) -> str | None:
    name = path.lower()
    ending = next((ending for ending in _COMPRESSED if name.endswith(ending)), "")
    kind = _KINDS.get(os.path.splitext(name.removesuffix(ending))[1])
    return None if ending and kind in ("parquet", "arrow") else kind


def _state(filesystem: Any, path: str) -> tuple[int, str]:
    """Size, and what changes with the content."""
    info = filesystem.get_file_info(path)
    if info.type != pafs.FileType.File:
        raise FileNotFoundError("is gone")
    if info.mtime_ns is not None:
        return info.size, str(info.mtime_ns)
    facts = filesystem.handler.fs.info(path) if isinstance(filesystem, pafs.PyFileSystem) else {}
    return info.size, next((str(facts[name]) for name in _VERSIONS if facts.get(name)), "")
