"""What a batch manager publishes on the shared page: frontends admit by it, and the supervisor's gauges show it."""

import math
from collections.abc import Sequence

from batch_manager.scheduling import forecast
from batch_manager.scheduling.model import Model
from wire.page import Page
from wire.vocabulary import RequestClass


def publish(models: Sequence[Model], page: Page, *, index: int, now: float) -> None:
    """How much waits, since when, and how fast it goes, into the cells of batch manager `index`."""
    for number, model in enumerate(models):
        for request_class in RequestClass:
            oldest = model.backlog.oldest(request_class)
            page.queued_tokens[index, number, request_class] = model.queued_tokens[request_class]
            page.computing_tokens[index, number, request_class] = model.computing_tokens(request_class)
            page.free_at[index, number, request_class] = forecast.free_at(model, request_class, now)
            page.oldest_since[index, number, request_class] = 0.0 if oldest == math.inf else oldest
        if model.tokens_per_second:  # else what the predecessor of this process found is the best guess
            page.tokens_per_second[index, number] = model.tokens_per_second
            page.streams[index, number] = model.num_streams
            page.batch_seconds[index, number] = forecast.batch_seconds(model, now)
        page.engines_ready[index, number] = len(model.engines)
        page.last_batch_at[index, number] = model.last_batch_at
