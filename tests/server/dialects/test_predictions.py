"""Scores on their way out: activated, sorted and written in slices, so that other requests get their turn."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.model.tasks import Activation
from server.dialects.classify import classes
from server.dialects.tei import predictions
from server.requests.work import activated
from tests.server.loop_share import turns_during


def some_scores(num_rows: int, num_labels: int) -> NDArray[np.float32]:
    scores: NDArray[np.float32] = 50 * np.random.default_rng(1).standard_normal((num_rows, num_labels), np.float32)
    return scores


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (50_000, 3), (3, 50_000)])
def test_many_scores_are_activated_in_slices(shape: tuple[int, int]) -> None:
    raw = some_scores(*shape)
    exact = raw.astype(np.float64)

    sigmoid = asyncio.run(activated(raw, Activation.SIGMOID))
    softmax = asyncio.run(activated(raw, Activation.SOFTMAX))
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    assert sigmoid.dtype == softmax.dtype == raw.dtype
    assert np.allclose(sigmoid, 1 / (1 + np.exp(-exact)), atol=1e-6)
    assert np.allclose(softmax, powers / powers.sum(axis=1, keepdims=True), atol=1e-6)
    assert asyncio.run(activated(raw, Activation.IDENTITY)) is raw
    if raw.size > 100_000:
        assert turns_during(activated(raw, Activation.SOFTMAX)) >= 2


def test_predictions_are_the_very_numbers() -> None:
    scores, labels = some_scores(40, 11), [f'{number} "quoted"' for number in range(11)]

    for row, item in zip(scores, asyncio.run(predictions(scores, labels)), strict=True):
        found = json.loads(item)
        assert {each["label"]: np.float32(each["score"]) for each in found} == dict(zip(labels, row, strict=True))
        assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)


@pytest.mark.parametrize("write", [predictions, classes])
def test_long_answers_leave_turns(write: Callable[..., Coroutine[Any, Any, object]]) -> None:
    assert turns_during(write(some_scores(2000, 10), [str(number) for number in range(10)])) >= 10
