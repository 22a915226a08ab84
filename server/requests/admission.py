"""Decides whether to accept a request, before it costs anything: by the waiting tokens and the engines' speed.

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
    """The longest expected wait, in seconds, at which a request of each class is accepted."""

    interactive: float
    bulk: float

    def of(self, request_class: RequestClass) -> float:
        """The budget of one class."""
        return self.interactive if request_class is RequestClass.INTERACTIVE else self.bulk


class Admission:
    """Admission of one frontend."""

    def __init__(self, page: Page, *, frontend: int, budgets: WaitBudgets, max_requests: int) -> None:
        self._page = page
        self._row = page.admitted_tokens[frontend]
        self._budgets = budgets
        self._max_requests = max_requests
        self._tokens_per_character = [0.25] * page.num_models
        self._num_requests = 0  # open now

    def estimate(self, model: int, num_characters: int, num_texts: int) -> int:
        """The number of tokens that texts will probably have."""
        return int(num_characters * self._tokens_per_character[model]) + _SPECIAL_TOKENS * num_texts

    def learn(self, model: int, num_characters: int, num_tokens: int) -> None:
        """Learn from texts of which nothing was cut off."""
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
        """Raises Overloaded if too many requests are open, this one included."""
        if self._num_requests > self._max_requests:
            message = "too many requests are open; see --max-concurrent-requests"
            raise Overloaded(message, retry_after=1.0, reason="concurrency")

    def check(self, model: int, request_class: RequestClass) -> None:
        """Raises Overloaded if this request would wait too long behind the others."""
        wait = expected_wait(self._page, model, request_class)
        budget = self._budgets.of(request_class)
        if wait > budget:
            message = "too much work is waiting to answer this request in time"
            raise Overloaded(message, retry_after=wait - budget, reason="wait")

    @contextlib.contextmanager
    def reserved(self, model: int, request_class: RequestClass, num_tokens: int) -> Iterator[None]:
        """Count tokens as admitted but not yet at a batch manager while the block runs."""
        self._row[model, request_class] += num_tokens
        try:
            yield
        finally:
            self._row[model, request_class] -= num_tokens


def expected_wait(page: Page, model: int, request_class: RequestClass) -> float:
    """Seconds that a request would wait if it came now; 0 before a rate is known.

    Interactive work goes before bulk work, so only bulk waits for both.
    """
    rate = float(page.tokens_per_second[:, model].sum())
    if rate <= 0:
        return 0.0
    ahead = slice(0, request_class + 1)
    num_tokens = int(page.queued_tokens[:, model, ahead].sum()) + int(page.admitted_tokens[:, model, ahead].sum())
    return num_tokens / rate
