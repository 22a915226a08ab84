"""Rows of files of lines: JSONL and CSV. A wrong line is a bad row, and the lines after it are read all the same."""

import csv
import gzip
import io
import json
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from typing import Any

import orjson

from server.backfill.errors import BackfillError
from server.backfill.rows import MAX_TEXT_CHARS, ROWS_AT_A_TIME, BadText, Rows, checked, is_unicode

_MAX_LINE_BYTES = 8 * MAX_TEXT_CHARS  # JSON takes up to six bytes for a character
_BUFFER_BYTES = 1 << 20
_HEAD_BYTES = 4
_MAX_EXACT = 1 << 53  # a float of JSON is not exact above that
_Row = tuple[Any, object]  # the id, and what stands in place of the text

csv.field_size_limit(_MAX_LINE_BYTES)


class LineRows:
    """One file of JSONL or CSV, compressed or not. Memory: a line."""

    def __init__(self, filesystem: Any, path: str, *, column: str, id_column: str | None, is_csv: bool = False) -> None:
        self._filesystem, self._path = filesystem, path
        self._lines = _of_csv if is_csv else _of_json
        self._columns = (column, id_column)

    def num_rows(self) -> int:
        """Reads the whole file. Raises BackfillError as `read` does."""
        return sum(map(len, self.read(0)))

    def read(self, start: int) -> Iterator[Rows]:
        """From this row on; what comes before is read and dropped. Raises BackfillError where the CSV ends in a quote,
        or has no such columns, and for UTF-16."""
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

    def id_type(self) -> str:
        """That of the first one there is: CSV has texts alone, JSON numbers too. "" where there is no column."""
        if self._columns[1] is None:
            return ""
        keys = (key for rows in self.read(0) for key in rows.ids if key is not None)
        return "string" if type(next(keys, "")) is str else "int64"


def without(column: str) -> BadText:
    """In place of the text of a line that has no such key."""
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
    """With NaN, which Python and pandas write, and halves of surrogate pairs: they may stand in other fields, and a bad
    row has an id too. Raises ValueError and RecursionError."""
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
