"""Scores with their labels as JSON, as TEI, Infinity and vLLM write them."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from server.dialects.writing.forms import numbers_as_json
from server.dialects.writing.rows import as_list
from server.requests.time_slices import TimeSlice


class Prediction(msgspec.Struct):
    """One label with its score, in TEI's and Infinity's form."""

    score: float
    label: str


async def predictions(scores: NDArray[np.float32], labels: Sequence[str], *, top_k: int | None = None) -> list[bytes]:
    """For each row of float32 [items, labels] a list of objects with label and score, the highest first.

    `top_k` of them; None = all.
    """
    ends = [b',"label":%b}' % msgspec.json.encode(label) for label in labels]
    items, time_slice = [], TimeSlice()
    for row in scores:
        order = np.argsort(-row, kind="stable")[:top_k]
        numbers = numbers_as_json(row[order])[1:-1].split(b",")
        items.append(
            as_list([b'{"score":%b%b' % (number, ends[at]) for number, at in zip(numbers, order.tolist(), strict=True)])
        )
        await time_slice.end_if_over()
    return items


async def classes(scores: NDArray[np.float32], labels: Sequence[str]) -> list[bytes]:
    """vLLM's objects for each row: the best label, and all scores in the model's order."""
    names = [msgspec.json.encode(label) for label in labels]
    best = scores.argmax(axis=1).tolist()
    items, time_slice = [], TimeSlice()
    for index, (row, at) in enumerate(zip(scores, best, strict=True)):
        items.append(
            b'{"index":%d,"label":%b,"probs":%b,"num_classes":%d}'
            % (index, names[at], numbers_as_json(row), len(names))
        )
        await time_slice.end_if_over()
    return items
