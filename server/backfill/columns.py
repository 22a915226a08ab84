"""Rows of files that have columns with types: Parquet, and Arrow's own two formats."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from server.backfill.errors import BackfillError
from server.backfill.rows import ROWS_AT_A_TIME, BadText, Rows, checked


class ParquetRows:
    """One Parquet file. Memory: a page of each column."""

    def __init__(self, filesystem: Any, path: str, *, column: str, id_column: str | None) -> None:
        """Raises BackfillError for a file without these columns."""
        self._file = pq.ParquetFile(filesystem.open_input_file(path))
        self._columns = (column, id_column)
        self._id_type = _id_type(self._file.schema_arrow, column, id_column)

    def num_rows(self) -> int:
        """As the file's footer says."""
        count: int = self._file.metadata.num_rows
        return count

    def id_type(self) -> str:
        """Arrow's name for it; "" where there is no column for ids."""
        return self._id_type

    def read(self, start: int) -> Iterator[Rows]:
        """From this row on; row groups before it are passed over."""
        first, metadata = 0, self._file.metadata
        while first < self._file.num_row_groups and start >= metadata.row_group(first).num_rows:
            start -= metadata.row_group(first).num_rows
            first += 1
        groups = list(range(first, self._file.num_row_groups))
        names = [name for name in self._columns if name is not None]
        batches = self._file.iter_batches(ROWS_AT_A_TIME, row_groups=groups, columns=names)
        return _rows(batches, start, *self._columns)


class ArrowRows:
    """One file or stream of Arrow's IPC format (Feather 2 is the same). Memory: one of its batches."""

    def __init__(self, filesystem: Any, path: str, *, column: str, id_column: str | None) -> None:
        """Raises BackfillError for a file without these columns."""
        self._filesystem, self._path = filesystem, path
        self._columns = (column, id_column)
        self._id_type = _id_type(self._open()[0], column, id_column)

    def _open(self) -> tuple[Any, Iterator[Any]]:
        return _ipc_batches(self._filesystem.open_input_file(self._path))

    def num_rows(self) -> int:
        """Reads the whole file."""
        return sum(batch.num_rows for batch in self._open()[1])

    def id_type(self) -> str:
        """Arrow's name for it; "" where there is no column for ids."""
        return self._id_type

    def read(self, start: int) -> Iterator[Rows]:
        """From this row on; what comes before is read and dropped."""
        return _rows(self._open()[1], start, *self._columns)


def _id_type(schema: Any, column: str, id_column: str | None) -> str:
    """Raises BackfillError for a schema without these columns, or with others than texts and ids in them."""
    for name in filter(None, (column, id_column)):
        if schema.get_field_index(name) < 0:
            raise BackfillError(f"has no column {name}, or several: it has {', '.join(schema.names[:20])}")
    kind = _values(schema.field(column).type)
    if not _is_text(kind):
        raise BackfillError(f"has no texts in the column {column} but {kind}")
    if id_column is None:
        return ""
    kind = _values(schema.field(id_column).type)
    if _is_text(kind):
        return "large_string" if pa.types.is_large_string(kind) else "string"
    if pa.types.is_integer(kind):
        return str(kind)
    raise BackfillError(f"has ids of the type {kind} in the column {id_column}: whole numbers and texts can be kept")


def _values(kind: Any) -> Any:
    """The type of what a dictionary or runs stand for."""
    is_encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return _values(kind.value_type) if is_encoded else kind


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _ipc_batches(file: Any) -> tuple[Any, Iterator[Any]]:
    """The schema, and the batches one after the other."""
    try:
        whole = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, iter(stream)
    return whole.schema, (whole.get_batch(number) for number in range(whole.num_record_batches))


def _rows(batches: Iterator[Any], skipped: int, column: str, id_column: str | None) -> Iterator[Rows]:
    for batch in batches:
        whole = batch.slice(min(skipped, batch.num_rows))
        skipped -= batch.num_rows - whole.num_rows
        for start in range(0, whole.num_rows, ROWS_AT_A_TIME):
            part = whole.slice(start, ROWS_AT_A_TIME)
            texts = [checked(value) for value in _texts(part.column(column))]
            ids = part.column(id_column).to_pylist() if id_column is not None else [None] * len(texts)
            yield Rows(ids, texts)


def _texts(column: Any) -> list[object]:
    try:
        values: list[object] = column.to_pylist()
        return values
    except UnicodeDecodeError:
        return [_text(cell) for cell in column]


def _text(cell: Any) -> object:
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        return BadText("the text is not UTF-8")
