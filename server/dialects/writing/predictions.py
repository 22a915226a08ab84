"""Scores with their labels, in JSON: what TEI's, Infinity's and vLLM's routes for classifiers are made of."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from server.dialects.writing.rows import as_list
from server.dialects.writing.time_slices import Turns

_SCORES_A_TURN = 2000

SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "properties": {"score": {"type": "number"}, "label": {"type": "string"}}},
}


async def predictions(scores: NDArray[np.float32], labels: Sequence[str]) -> list[bytes]:
    """For each row of float32 [items, labels] a list of objects with label and score, the highest first."""
    ends = [b',"label":%b}' % msgspec.json.encode(label) for label in labels]
    items, turns = [], Turns(_SCORES_A_TURN)
    for row in scores:
        order = np.argsort(-row, kind="stable")
        numbers = in_json(row[order])[1:-1].split(b",")
        items.append(
            as_list([b'{"score":%b%b' % (number, ends[at]) for number, at in zip(numbers, order.tolist(), strict=True)])
        )
        await turns.wrote(len(ends))
    return items


async def classes(scores: NDArray[np.float32], labels: Sequence[str]) -> list[bytes]:
    """vLLM's objects for each row: the best label, and all scores in the model's order."""
    names = [msgspec.json.encode(label) for label in labels]
    best = scores.argmax(axis=1).tolist()
    items, turns = [], Turns(_SCORES_A_TURN)
    for index, (row, at) in enumerate(zip(scores, best, strict=True)):
        items.append(
            b'{"index":%d,"label":%b,"probs":%b,"num_classes":%d}' % (index, names[at], in_json(row), len(names))
        )
        await turns.wrote(len(names))
    return items


def in_json(numbers: NDArray[np.float32]) -> bytes:
    """A list of numbers."""
    return orjson.dumps(np.ascontiguousarray(numbers, "<f4"), option=orjson.OPT_SERIALIZE_NUMPY)
