"""The input of a job: which files there are, of which kind, and their rows as one sequence."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from server.features.backfill import locations
from server.features.backfill.errors import BackfillError, InputChanged, RefusedJob, in_words
from server.features.backfill.locations import check_no_secrets
from server.features.backfill.readers import ArrowRows, BadText, LineRows, ParquetRows, Rows, without

_READERS: dict[str, Any] = {
    "parquet": ParquetRows,
    "arrow": ArrowRows,
    "jsonl": LineRows,
    "csv": partial(LineRows, is_csv=True),
}


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it was when the job was planned."""

    path: str
    size: int  # bytes
    version: str  # changes with the content: nanoseconds of the last change, or an etag
    num_rows: int
    id_type: str  # Arrow's name; "" = there is no column for ids


class Source:
    """The rows of the input, numbered through its files in the order of their names."""

    def __init__(self, location: str, *, column: str, id_column: str | None) -> None:
        """Raises RefusedJob where nothing can be read there."""
        check_no_secrets(location, "IN")
        self._column, self._id_column = column, id_column
        try:
            self._filesystem, path = locations.opened(location)
            self._found = locations.files(self._filesystem, path)
        except RefusedJob:
            raise
        except Exception as error:  # every store's library has errors of its own, here and below
            raise RefusedJob(f"IN can't be read: {in_words(error)}") from None
        kinds = {locations.kind(path) for path in self._found}
        if not self._found or len(kinds) != 1:
            what = f"files of several kinds: {', '.join(sorted(filter(None, kinds)))}" if kinds else "no such file"
            raise RefusedJob(f"IN has {what}; known are {', '.join(locations.KINDS)}")
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
        if self.kind == "jsonl" and not known:
            self._check_columns()

    def _check_columns(self) -> None:
        """Raises RefusedJob where no line has one of them, as when its name is mistyped: JSONL has no header."""
        has_column, has_good, has_id = False, False, self._id_column is None
        for rows in self.read(0):
            has_column = has_column or any(text != without(self._column) for text in rows.texts)
            has_good = has_good or not all(isinstance(text, BadText) for text in rows.texts)
            has_id = has_id or any(key is not None for key in rows.ids)
            if has_column and has_id:
                return
        if self.num_rows and not has_column:
            raise RefusedJob(f"no line of IN has {json.dumps(self._column)}, as --column says")
        if has_good:  # else nothing is known of the lines
            raise RefusedJob(f"no line of IN has an id in {json.dumps(self._id_column)}, as --id-column says")

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def id_type(self) -> str:
        """Arrow's name for the type of the ids that are written; without a column for them, rows are numbered."""
        return self.files[0].id_type or "int64"

    def _planned(self, path: str, known: InputFile | None) -> InputFile:
        try:
            size, version = locations.state(self._filesystem, path)
            if known is not None and (known.size, known.version) == (size, version):
                return known
            reader = self._reader(path)
            return InputFile(path, size, version, reader.num_rows(), reader.id_type)
        except BackfillError as error:
            raise RefusedJob(f"{path} {error}") from None
        except Exception as error:
            raise RefusedJob(f"{path} can't be read: {in_words(error)}") from None

    def _reader(self, path: str) -> Any:
        return _READERS[self.kind](self._filesystem, path, column=self._column, id_column=self._id_column)

    def read(self, start: int) -> Iterator[Rows]:
        """Reads from this row on. Raises BackfillError where a file is not what it was."""
        first = 0
        for file in self.files:
            stop = first + file.num_rows
            if start < stop:
                yield from self._of(file, first, max(0, start - first))
            first = stop

    def _of(self, file: InputFile, first: int, start: int) -> Iterator[Rows]:
        """Reads one file. `first`: number of its first row in the job; `start`: of its rows, the first wanted."""
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
            raise InputChanged(f"{file.path} has changed since the job was planned")

    def check(self, rows: range) -> None:
        """Raises BackfillError where a file that these rows come from has changed."""
        first = 0
        for file in self.files:
            if first < rows.stop and rows.start < first + file.num_rows:
                self._check(file)
            first += file.num_rows

    def _check(self, file: InputFile) -> None:
        try:
            state = locations.state(self._filesystem, file.path)
        except Exception as error:
            raise BackfillError(f"{file.path} can't be read: {in_words(error)}") from None
        if state != (file.size, file.version):
            raise InputChanged(f"{file.path} has changed since the job was planned")
