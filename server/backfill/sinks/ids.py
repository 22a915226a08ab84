"""Ids of rows that go into a database: each must be there, and there once, or one row would overwrite another."""

import contextlib
import itertools
import sqlite3

from server.backfill.errors import RefusedJob
from server.backfill.rows import BadText, is_unicode
from server.backfill.source import Source

_SEVERAL = "SELECT min(row), max(row) FROM ids GROUP BY id HAVING count(*) > 1 LIMIT 1"


def check_ids(source: Source) -> None:
    """Reads the whole input once. The ids go to a temporary file, so that memory is flat in their number. Raises
    RefusedJob for an id of two rows, for a row with a text and no id, and for ids that no database takes."""
    is_text = source.id_type.endswith("string")
    with contextlib.closing(sqlite3.connect("", isolation_level=None)) as found:
        found.execute("PRAGMA journal_mode = OFF")
        found.execute("CREATE TABLE ids (id, row INTEGER PRIMARY KEY)")
        found.execute("BEGIN")
        first = 0
        try:
            for rows in source.read(0):
                numbered = zip(itertools.count(first), rows.ids, rows.texts, strict=False)
                first += len(rows)
                # a broken line has neither id nor text: it goes to no database
                kept = [(row, key) for row, key, text in numbered if key is not None or not isinstance(text, BadText)]
                for row, key in kept:
                    _check(row, key, is_text=is_text)
                found.executemany("INSERT INTO ids (row, id) VALUES (?, ?)", kept)
            twice = found.execute(_SEVERAL).fetchone()
        except sqlite3.Error as error:
            raise RefusedJob(f"the ids can't be compared in the temporary folder: {error}") from None
    if twice is not None:
        raise RefusedJob(f"rows {twice[0]} and {twice[1]} have one id: in a database one would overwrite the other")


def _check(row: int, key: object, *, is_text: bool) -> None:
    """Raises RefusedJob for an id that a database can't have."""
    if key is None:
        raise RefusedJob(f"row {row} has no id, and a database needs one; without --id-column rows are numbered")
    if type(key) is not (str if is_text else int):
        raise RefusedJob(
            f"the id of row {row} is no {'text' if is_text else 'whole number'}, as the ids of this job are"
        )
    if isinstance(key, int) and not -(1 << 63) <= key < 1 << 63:
        raise RefusedJob(f"the id of row {row} is no number of 64 bits")
    if isinstance(key, str) and ("\0" in key or not is_unicode(key)):
        raise RefusedJob(f"the id of row {row} is no text that a database takes")
