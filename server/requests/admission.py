"""Whether a request may come in, decided before it costs anything: by the tokens that wait and how fast they go.

Reads the shared page and writes this frontend's row of it. Knows no request's content.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from server.requests.errors import Overloaded
from wire.page import Page
from wire.vocabulary import RequestClass

_SPECIAL_TOKENS = 2  # about what a model adds to a text
_LEARNING_RATE = 0.05  # weight of the newest request in the characters-to-tokens ratio


@dataclass(frozen=True, slots=True)
class WaitBudgets:
    """Seconds a request of each class may be expected to wait for its turn."""

    interactive: float
    bulk: float

    def of(self, request_class: RequestClass) -> float:
        """The budget of one class."""
        return self.interactive if request_class is RequestClass.INTERACTIVE else self.bulk


class Admission:
    """One frontend's door."""

    def __init__(self, page: Page, *, frontend: int, budgets: WaitBudgets, max_requests: int) -> None:
        self._page = page
        self._row = page.admitted_tokens[frontend]
        self._budgets = budgets
        self._max_requests = max_requests
        self._tokens_per_character = [0.25] * page.num_models
        self._num_requests = 0  # open now

    def estimate(self, model: int, num_characters: int, num_texts: int) -> int:
        """Tokens that texts will have."""
        return int(num_characters * self._tokens_per_character[model]) + _SPECIAL_TOKENS * num_texts

    def learn(self, model: int, num_characters: int, num_tokens: int) -> None:
        """Take note of what tokenizing gave for texts of which nothing was cut off."""
        if num_characters:
            old = self._tokens_per_character[model]
            self._tokens_per_character[model] += (num_tokens / num_characters - old) * _LEARNING_RATE

    @property
    def num_open(self) -> int:
        """Requests that are open now."""
        return self._num_requests

    @contextlib.contextmanager
    def open_request(self) -> Iterator[None]:
        """Count a request as open while the block runs: from its head to its answer's last byte."""
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    def check_open(self) -> None:
        """Raises Overloaded where too many requests are open, the asking one among them."""
        if self._num_requests > self._max_requests:
            message = "too many requests are open; see --max-concurrent-requests"
            raise Overloaded(message, retry_after=1.0, reason="concurrency")

    def check(self, model: int, request_class: RequestClass) -> None:
        """Raises Overloaded where what waits already would keep this request waiting for too long."""
        wait = expected_wait(self._page, model, request_class)
        budget = self._budgets.of(request_class)
        if wait > budget:
            message = "more work is waiting than can be done in time"
            raise Overloaded(message, retry_after=wait - budget, reason="wait")

    @contextlib.contextmanager
    def reserved(self, model: int, request_class: RequestClass, num_tokens: int) -> Iterator[None]:
        """Count tokens as on their way to a batch manager while the block runs."""
        self._row[model, request_class] += num_tokens
        try:
            yield
        finally:
            self._row[model, request_class] -= num_tokens


def expected_wait(page: Page, model: int, request_class: RequestClass) -> float:
    """Seconds that a request which comes now would wait for its turn; 0 before a rate is known.

    Interactive work goes before bulk work, so only bulk waits for both.
    """
    rate = float(page.tokens_per_second[:, model].sum())
    if rate <= 0:
        return 0.0
    ahead = slice(0, request_class + 1)
    num_tokens = int(page.queued_tokens[:, model, ahead].sum()) + int(page.admitted_tokens[:, model, ahead].sum())
    return num_tokens / rate
