"""What a batch manager tells everybody through the shared page: how much waits, since when, how fast it goes."""

import math
from collections.abc import Sequence

from batch_manager.model import Model
from wire.page import Page
from wire.vocabulary import RequestClass


class Publisher:
    """Writes one batch manager's cells of the page."""

    def __init__(self, page: Page, index: int) -> None:
        self._queued_tokens = page.queued_tokens[index]
        self._tokens_per_second = page.tokens_per_second[index]
        self._engines_ready = page.engines_ready[index]
        self._oldest_since = page.oldest_since[index]
        self._last_batch_at = page.last_batch_at[index]

    def publish(self, models: Sequence[Model]) -> None:
        """Write what is so now."""
        for index, model in enumerate(models):
            for request_class in RequestClass:
                oldest = model.backlog.oldest(request_class)
                self._queued_tokens[index, request_class] = model.queued_tokens[request_class]
                self._oldest_since[index, request_class] = 0.0 if oldest == math.inf else oldest
            if model.tokens_per_second:  # else what the predecessor of this process found is the best guess
                self._tokens_per_second[index] = model.tokens_per_second
            self._engines_ready[index] = len(model.engines)
            self._last_batch_at[index] = model.last_batch_at
