"""What a batch manager publishes on the shared page: frontends admit by it, and the supervisor's gauges show it."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batch_manager.scheduling import forecast
from batch_manager.scheduling.model import Model
from wire.page import Page
from wire.vocabulary import RequestClass

_CLASSES = tuple(RequestClass)


class Publisher:
    """Writes the cells of batch manager `index`, through memoryviews: numpy takes three times as long for a number."""

    def __init__(self, models: Sequence[Model], page: Page, *, index: int) -> None:
        self._models = [_ModelCells(model, page, index, number) for number, model in enumerate(models)]
        self._published_at = _floats(page.published_at)
        self._index = index

    def publish(self, now: float) -> None:
        """How much waits, since when, and how fast it goes."""
        for model in self._models:
            model.publish(now)
        self._published_at[self._index] = now


class _ModelCells:
    """Those of one model."""

    def __init__(self, model: Model, page: Page, index: int, number: int) -> None:
        self._model = model
        self._number = number
        at = (index, number)
        self._queued, self._computing = memoryview(page.queued_tokens[at]), memoryview(page.computing_tokens[at])
        self._free_at, self._oldest_since = _floats(page.free_at[at]), _floats(page.oldest_since[at])
        self._rates, self._batch_seconds = _floats(page.tokens_per_second[index]), _floats(page.batch_seconds[index])
        self._streams, self._engines_ready = memoryview(page.streams[index]), memoryview(page.engines_ready[index])
        self._last_batch_at = _floats(page.last_batch_at[index])

    def publish(self, now: float) -> None:
        model, number = self._model, self._number
        backlog = model.backlog
        for request_class in _CLASSES:
            queued, waiting = model.queued_tokens[request_class], backlog.num_tokens[request_class]
            oldest = backlog.oldest(request_class) if waiting else math.inf
            self._queued[request_class] = queued
            self._computing[request_class] = queued - waiting
            self._free_at[request_class] = forecast.free_at(model, request_class, now)
            self._oldest_since[request_class] = 0.0 if oldest == math.inf else oldest
        if rate := model.tokens_per_second:  # else what the predecessor of this process found is the best guess
            self._rates[number] = rate
            self._streams[number] = model.num_streams
            self._batch_seconds[number] = forecast.batch_seconds(model, now)
        self._engines_ready[number] = len(model.engines)
        self._last_batch_at[number] = model.last_batch_at


def _floats(cells: NDArray[np.float64]) -> "memoryview[float]":
    return cells.data.cast("B").cast("d")
