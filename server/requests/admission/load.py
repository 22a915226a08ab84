"""How much a server has to do, for a balancer that chooses among several: GET /load."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.requests.admission.expected_wait import expected_wait
from wire.page import Page
from wire.vocabulary import RequestClass

_OLD_SECONDS = 2.0  # batch managers publish twice a second, and after every change


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Of all models, or of one. A batch manager that is stuck makes it old, and `reason` says so."""

    ready: bool
    reason: str | None
    waiting_tokens: int
    computing_tokens: int
    in_flight_tokens: int  # let in and not answered: those, and what is being tokenized or written
    oldest_wait_seconds: float  # of what waits now
    expected_wait_seconds: float  # of an interactive request that came now, for the model with the longest
    age_seconds: float  # of the oldest of these numbers


def load(page: Page, models: Sequence[int], why_not_ready: str | None) -> Load:
    """Of the models with these numbers, as it is now."""
    now = time.monotonic()
    at = list(models)
    queued, computing, in_flight = (
        int(cells[:, at].sum()) for cells in (page.queued_tokens, page.computing_tokens, page.admitted_tokens)
    )
    since, published = page.oldest_since[:, at], page.published_at
    age = max(0.0, now - float(published[published > 0].min(initial=now)))  # 0: not started, and it has nothing
    waits = [expected_wait(page, model, RequestClass.INTERACTIVE) for model in at]
    reason = why_not_ready
    if reason is None and age > _OLD_SECONDS:
        reason = f"these numbers are {age:.1f} s old"
    return Load(
        ready=reason is None,
        reason=reason,
        waiting_tokens=max(0, queued - computing),
        computing_tokens=computing,
        in_flight_tokens=max(0, in_flight),
        oldest_wait_seconds=round(max(0.0, now - float(since[since > 0].min(initial=now))), 3),
        expected_wait_seconds=round(max(waits, default=0.0), 3),
        age_seconds=round(age, 3),
    )
