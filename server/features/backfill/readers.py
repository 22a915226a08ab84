"""Rows of an input, as every kind of file gives them: Parquet, Arrow's own two formats, JSONL and CSV.

The first three have columns with types. In the other two a wrong line is a bad row, and the lines after it are read
all the same.
"""

import csv
import gzip
import io
import json
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from server.features.backfill.errors import BackfillError

MAX_TEXT_CHARS = 8 << 20  # longer ones are bad rows: no model reads so much, and it would not fit into a request
ROWS_AT_A_TIME = 256
_MAX_LINE_BYTES = 8 * MAX_TEXT_CHARS  # JSON takes up to six bytes for a character
_BUFFER_BYTES = 1 << 20
_HEAD_BYTES = 4
_MAX_EXACT = 1 << 53  # a float of JSON is not exact above that
_Row = tuple[Any, object]  # the id, and what stands in place of the text


@dataclass(frozen=True, slots=True)
class BadText:
    """The reason that stands in place of a text that can't be embedded."""

    reason: str


Text = str | BadText


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows."""

    ids: Sequence[Any]  # one of each row; None where it has none
    texts: Sequence[Text]

    def __len__(self) -> int:
        return len(self.texts)

    def cut(self, start: int, stop: int) -> "Rows":
        """The rows of this range."""
        return Rows(self.ids[start:stop], self.texts[start:stop])


def checked(value: object) -> Text:
    """A cell's value as a text, or what is wrong with it."""
    if isinstance(value, BadText):
        return value
    if value is None:
        return BadText("the text is null")
    if not isinstance(value, str):
        return BadText(f"the text is no text but {type(value).__name__}")
    if not value:
        return BadText("the text is empty")
    if len(value) > MAX_TEXT_CHARS:
        return BadText(f"the text has {len(value):,} characters, and {MAX_TEXT_CHARS:,} are the most")
    return value


def is_unicode(text: str) -> bool:
    """False for one with halves of surrogate pairs: no text of any file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ParquetRows:
    """One Parquet file. Memory: a page of each column."""

    def __init__(self, filesystem: Any, path: str, *, column: str, id_column: str | None) -> None:
        """Raises BackfillError for a file without these columns."""
        self._file = pq.ParquetFile(filesystem.open_input_file(path))
        self._columns = (column, id_column)
        self.id_type = _id_type(self._file.schema_arrow, column, id_column)

    def num_rows(self) -> int:
        """The number in the file's footer."""
        count: int = self._file.metadata.num_rows
        return count

    def read(self, start: int) -> Iterator[Rows]:
        """Reads from this row on; row groups before it are passed over."""
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
        self.id_type = _id_type(self._open()[0], column, id_column)

    def _open(self) -> tuple[Any, Iterator[Any]]:
        return _ipc_batches(self._filesystem.open_input_file(self._path))

    def num_rows(self) -> int:
        """The number of rows, for which the whole file is read."""
        return sum(batch.num_rows for batch in self._open()[1])

    def read(self, start: int) -> Iterator[Rows]:
        """Reads from this row on; what comes before is read and dropped."""
        return _rows(self._open()[1], start, *self._columns)


def _id_type(schema: Any, column: str, id_column: str | None) -> str:
    """The type of the ids; "" if there are none. Raises BackfillError where columns lack, or have another type."""
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
            try:
                values = part.column(column).to_pylist()  # a fifth of the time of one by one
            except UnicodeDecodeError:
                values = [_text(cell) for cell in part.column(column)]
            texts = list(map(checked, values))
            ids = part.column(id_column).to_pylist() if id_column is not None else [None] * len(texts)
            yield Rows(ids, texts)


def _text(cell: Any) -> object:
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        return BadText("the text is not UTF-8")


csv.field_size_limit(_MAX_LINE_BYTES)


class LineRows:
    """One file of JSONL or CSV, compressed or not. Memory: a line."""

    def __init__(self, filesystem: Any, path: str, *, column: str, id_column: str | None, is_csv: bool = False) -> None:
        self._filesystem, self._path = filesystem, path
        self._lines = _of_csv if is_csv else _of_json
        self._columns = (column, id_column)

    def num_rows(self) -> int:
        """The number of rows, for which the whole file is read. Raises BackfillError as `read` does."""
        return sum(map(len, self.read(0)))

    def read(self, start: int) -> Iterator[Rows]:
        """Reads from this row on; what comes before is read and dropped. Raises BackfillError where the CSV ends in a
        quote, or has no such columns, and for UTF-16."""
        with io.BufferedReader(self._open(), _BUFFER_BYTES) as stream:
            head = stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
            if head.startswith((BOM_UTF16_BE, BOM_UTF16_LE)) or 0 in head:
                raise BackfillError("is no UTF-8 but UTF-16 or UTF-32, by its first bytes")
            ids: list[Any] = []
            texts: list[Any] = []
            for number, (key, text) in enumerate(self._lines(stream, *self._columns)):
                if number < start:
                    continue
                ids.append(key)
                texts.append(checked(text))
                if len(ids) == ROWS_AT_A_TIME:
                    yield Rows(ids, texts)
                    ids, texts = [], []
            if ids:
                yield Rows(ids, texts)

    def _open(self) -> Any:
        """Arrow's reader of gzip takes no zeros behind it, which tapes and block copies leave there."""
        if self._path.lower().endswith(".gz"):
            return gzip.GzipFile(fileobj=self._filesystem.open_input_stream(self._path, compression=None))
        return self._filesystem.open_input_stream(self._path)

    @property
    def id_type(self) -> str:
        """The type of the first id there is: CSV has texts alone, JSON numbers too. "" where there is no column."""
        if self._columns[1] is None:
            return ""
        keys = (key for rows in self.read(0) for key in rows.ids if key is not None)
        return "string" if type(next(keys, "")) is str else "int64"


def without(column: str) -> BadText:
    """The reason that stands in place of the text of a line that has no such key."""
    return BadText(f"the line has no {json.dumps(column)}")


def _of_json(stream: io.BufferedReader, column: str, id_column: str | None) -> Iterator[_Row]:
    """Blank lines are no rows, and a byte order mark is none of the first."""
    if stream.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
        stream.read(len(BOM_UTF8))
    while line := stream.readline(_MAX_LINE_BYTES):
        if len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(_BUFFER_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield None, BadText(f"the line has more than {_MAX_LINE_BYTES:,} bytes")
        elif not line.isspace():
            yield _json_row(line, column, id_column)


def _json_row(line: bytes, column: str, id_column: str | None) -> _Row:
    try:
        found = _parsed(line)
    except (ValueError, RecursionError):
        return None, BadText("the line is no JSON")
    if not isinstance(found, dict):
        return None, BadText("the line is no JSON object")
    key = found.get(id_column) if id_column is not None else None
    if isinstance(key, float) and key.is_integer() and abs(key) <= _MAX_EXACT:
        key = int(key)  # as 1.0 comes of a column of pandas with gaps
    if isinstance(key, str) and not is_unicode(key):
        return None, BadText("the id is not UTF-8")
    text = found.get(column, without(column))
    return key, text if not isinstance(text, str) or is_unicode(text) else BadText("the text is not UTF-8")


def _parsed(line: bytes) -> Any:
    """Reads JSON with NaN, which Python and pandas write, and halves of surrogate pairs: they may stand in other
    fields, and a bad row has an id too. Raises ValueError and RecursionError."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


def _of_csv(stream: io.BufferedReader, column: str, id_column: str | None) -> Iterator[_Row]:
    lines = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline=""), strict=True)
    try:
        header = next(lines, [])
        for name in filter(None, (column, id_column)):
            if header.count(name) != 1:
                raise BackfillError(f"has no column {name}, or several: it has {', '.join(header[:20])}")
        place, id_place = header.index(column), header.index(id_column) if id_column is not None else None
        for fields in lines:
            if fields:  # a blank line is no row
                yield _csv_row(fields, len(header), place, id_place)
    except csv.Error as error:
        raise BackfillError(f"can't be read from line {lines.line_num} on: {error}") from None


def _csv_row(fields: list[str], width: int, place: int, id_place: int | None) -> _Row:
    key = fields[id_place] if id_place is not None and id_place < len(fields) else None
    if len(fields) != width:
        return key, BadText(f"the line has {len(fields)} fields where the header has {width}")
    text = fields[place]
    return key, text if is_unicode(text) else BadText("the text is not UTF-8")
