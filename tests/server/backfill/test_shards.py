"""The order in which texts are sent, and that rows find their places again."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from server.features.backfill import work as shards_module
from server.features.backfill.plan import Plan
from server.features.backfill.readers import BadText, Rows, Text
from server.features.backfill.source import InputFile
from server.features.backfill.work import Shards

TEXTS: Sequence[Text] = ["aa", "aaaa", BadText("the text is null"), "a", "aaa", "aaaaaa", "aaaaa"]


def opened() -> Shards:
    plan = Plan(
        location="in.jsonl",
        column="text",
        id_column=None,
        inputs=(InputFile("in.jsonl", 1, "1", len(TEXTS), ""),),
        id_type="int64",
        model={},
        ask={},
        dimensions=1,
        dtype="float32",
        format="parquet",
        sink="",
        shard_rows=5,
    )
    return Shards(plan, range(2), iter([Rows(range(3), TEXTS[:3]), Rows(range(3, 7), TEXTS[3:])]))


def test_long_texts_go_first_and_rows_find_their_places() -> None:
    shards = opened()
    sent = list(shards.texts())
    assert sent == ["aaaa", "aaa", "aa", "a", "aaaaaa", "aaaaa"]  # of each part by itself
    lengths = np.array([[len(text)] for text in sent], np.float32)
    shards.put(SimpleNamespace(start=0, stop=len(sent), embeddings=lengths))
    rows = [shard.content(lambda _: []).rows[:, 0].tolist() for shard in shards.take_complete()]
    assert rows == [[2, 4, 0, 1, 3], [6, 5]]


@pytest.mark.parametrize("limit", ["_WINDOW_TEXTS", "_WINDOW_CHARS"])
def test_few_rows_are_read_to_be_sorted(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, limit, 2)
    assert list(opened().texts()) == ["aaaa", "aa", "aaa", "a", "aaaaaa", "aaaaa"]
