"""The load of a server, out of the shared page: how long a new request would wait, and what GET /load says.

What is ahead of a request is what all frontends have let in and not answered. Engines are busy with some of that and
say when they will be done; the rest waits and goes at their measured rate.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batch_manager.messages import Policy
from wire.page import Page
from wire.vocabulary import RequestClass

_POLICY = Policy()
_BULK_BESIDE = _POLICY.bulk_share / (1 - _POLICY.bulk_share)  # tokens, for each of interactive work while both wait
_OLD_SECONDS = 2.0  # batch managers publish twice a second, and after every change


@dataclass(slots=True)
class Ahead:
    """The work that is ahead of a request of one class. Tokens are of all frontends."""

    tokens_per_second: float  # of all engines; 0 = not known
    busy_seconds: float  # until the engines are done with what they hold and goes before it
    batch_seconds: float  # how long the largest batch computes; 0 = not known
    interactive: int  # waiting tokens
    bulk: int  # waiting tokens
    is_idle: bool  # nothing is ahead, whether waiting or computed

    def tokens(self, request_class: RequestClass, part: float = 1.0) -> float:
        """The waiting tokens that go first. `part` is what of the request's own class goes first, where keys share it.

        Interactive work goes before bulk, which keeps its share of each batch.
        """
        if request_class is RequestClass.BULK:
            return self.interactive + self.bulk * part
        ahead = self.interactive * part
        return ahead + min(self.bulk, ahead * _BULK_BESIDE)


class ModelPage:
    """The cells of one model."""

    def __init__(self, page: Page, model: int) -> None:
        self._rates = page.tokens_per_second[:, model]
        self._streams = page.streams[:, model]
        self._admitted = page.admitted_tokens[:, model]
        self._by_key = page.admitted_by_key[:, model]
        self._kept_back = page.kept_back_tokens[:, model]
        self._computing = page.computing_tokens[:, model]
        self._free_at = [page.free_at[:, model, request_class] for request_class in RequestClass]
        self._batch_seconds = page.batch_seconds[:, model]
        self._last_batch_at = page.last_batch_at[:, model]

    def is_forecast_old(self, now: float) -> bool:
        """Whether nothing has been computed for so long that an idle engine is better tried than judged."""
        return now - float(self._last_batch_at.max()) >= _POLICY.forecast_memory

    def ahead(self, request_class: RequestClass, now: float, *, needs_memory: bool = False) -> Ahead:
        """The work that is ahead now. What waits for room is ahead only of what needs room too: it stands in the same
        line."""
        # lists, as they are quicker than numpy's sums over one or two cells
        rates: list[float] = self._rates.tolist()
        rate = sum(rates)
        interactive = bulk = 0
        for of_frontend in self._admitted.tolist():
            interactive += of_frontend[RequestClass.INTERACTIVE]
            bulk += of_frontend[RequestClass.BULK]
        kept_back = int(self._kept_back[:, request_class].sum()) if needs_memory else 0
        is_idle = not (interactive or bulk or kept_back)
        for of_manager in self._computing.tolist():
            interactive -= of_manager[RequestClass.INTERACTIVE]
            bulk -= of_manager[RequestClass.BULK]
        busy = 0.0
        for free_at, its_rate in zip(self._free_at[request_class].tolist(), rates, strict=True):
            if free_at > now:
                busy += (free_at - now) * its_rate
        # a frontend and its batch manager do not hear of the end of a request in the same moment
        interactive, bulk = max(0, interactive), max(0, bulk)
        if request_class is RequestClass.BULK:
            bulk += kept_back
        else:
            interactive += kept_back
        return Ahead(rate, busy / rate if rate else 0.0, max(self._batch_seconds.tolist()), interactive, bulk, is_idle)

    def rate_of_one(self, num_seqs: int) -> float:
        """The tokens per second at which a request of so many sequences is computed: each by one stream. 0 = not
        known."""
        rate, streams = float(sum(self._rates.tolist())), int(sum(self._streams.tolist()))
        return rate if num_seqs >= streams else rate * num_seqs / streams

    def queued_by_key(self, request_class: RequestClass, *, needs_memory: bool) -> NDArray[np.int64]:
        """The tokens of one class that are let in and not answered, by API key, int64 [K]."""
        queued: NDArray[np.int64] = self._by_key[:, request_class].sum(axis=0)
        return queued + self._kept_back[:, request_class].sum(axis=0) if needs_memory else queued


def expected_wait(page: Page, model: int, request_class: RequestClass) -> float:
    """The seconds that a request would wait if it came now; 0 before a rate is known."""
    ahead = ModelPage(page, model).ahead(request_class, time.monotonic())
    if not ahead.tokens_per_second:
        return 0.0
    return ahead.busy_seconds + ahead.tokens(request_class) / ahead.tokens_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The work that all models have, or one. A batch manager that is stuck makes it old, and `reason` says so."""

    ready: bool
    reason: str | None
    waiting_tokens: int
    computing_tokens: int
    in_flight_tokens: int  # let in and not answered: those, and what is being tokenized or written
    oldest_wait_seconds: float  # of what waits now
    expected_wait_seconds: float  # of an interactive request that came now, for the model with the longest
    age_seconds: float  # of the oldest of these numbers


def load(page: Page, models: Sequence[int], why_not_ready: str | None) -> Load:
    """The load of the models with these numbers, as it is now."""
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
