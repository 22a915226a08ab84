"""Ids for a database: each there, and there once."""

import json
from pathlib import Path
from typing import Any

import pytest

from server.features.backfill.errors import RefusedJob
from server.features.backfill.sinks import check_ids
from server.features.backfill.source import Source


def planned(path: Path, keys: list[Any], text: str | None = "a") -> Source:
    path.write_text("\n".join(json.dumps({"key": key, "text": text}) for key in keys))
    source = Source(str(path), column="text", id_column="key")
    source.plan()
    return source


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["a", "b", "a"], "^rows 0 and 2 have one id"),
        ([*range(600), 17], "^rows 17 and 600 have one id"),
        (["a", None], "^row 1 has no id, and a database needs one"),
        ([1, "b"], "^the id of row 1 is no whole number, as the ids of this job are"),
        ([1.5], "^the id of row 0 is no whole number, as the ids of this job are"),
        ([1.0, 2.5], "^the id of row 1 is no whole number, as the ids of this job are"),
        ([1e17], "^the id of row 0 is no whole number, as the ids of this job are"),  # no longer exact
        (["a", 1.5], "^the id of row 1 is no text, as the ids of this job are"),
        ([1, 1 << 63], "^the id of row 1 is no number of 64 bits"),
        (["a", "b\0"], "^the id of row 1 is no text that a database takes"),
    ],
)
def test_a_wrong_id_is_refused(keys: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedJob, match=words):
        check_ids(planned(tmp_path / "in.jsonl", keys))


def test_good_ids_and_broken_lines_pass(tmp_path: Path) -> None:
    check_ids(planned(tmp_path / "in.jsonl", ["a", "b", "A"]))
    check_ids(planned(tmp_path / "in.jsonl", [None, None, "a"], text=None))
    check_ids(planned(tmp_path / "in.jsonl", [1.0, 2, -3.0]))
