"""Decides whether to accept a request, before it costs anything, and when a refused one should come back. `load` is
what GET /load says.

Reads the shared page and writes this frontend's row of it. What is ahead of a request is what all frontends have let in
and not answered. Engines are busy with some of that and say when they will be done; the rest waits and goes at their
measured rate. Knows no request's content.
"""

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batch_manager.messages import Policy
from server.requests.errors import InvalidRequest, Overloaded
from server.requests.limits import Allowance, KeyCeilings, KeyPlaces, KeyShare, KeyShares, OpenRequests, Turn
from server.requests.row_memory import MAX_HELD_BYTES, RowMemory
from server.settings.api_keys import ApiKey
from wire.page import Page
from wire.vocabulary import RequestClass

_SPECIAL_TOKENS = 2  # about what a model adds to a text
_USUAL_RATIO = 0.25  # tokens a character
_HISTORY = 2000  # characters that weigh as much as all that came before; of a request no more count
_SPARE = 1.1  # times the expected time must fit before a deadline: rates are estimates, and answers have a way to go
_ALONE = Turn(ahead=1.0, of_engines=1.0, is_over=False)
# Queries with large rows have memory of their own, or they would wait behind bulk.
_QUARTERS_OF_MEMORY = {RequestClass.INTERACTIVE: 1, RequestClass.BULK: 3}
_RETURN_PART = 0.3  # of the engines' speed: after a burst a server that is half busy has room for it
_POLICY = Policy()
_BULK_BESIDE = _POLICY.bulk_share / (1 - _POLICY.bulk_share)  # tokens, for each of interactive work while both wait
_OLD_SECONDS = 2.0  # batch managers publish twice a second, and after every change
_LONGEST_RETURN = 300.0  # seconds; later slots begin anew, so a long overload is spread over this time


class Ahead(NamedTuple):
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
        return bool(now - max(self._last_batch_at.tolist()) >= _POLICY.forecast_memory)

    def is_idle(self, request_class: RequestClass, now: float) -> bool:
        """Whether nothing is ahead of a request that needs no room: what `ahead` finds, with less to count."""
        return max(self._free_at[request_class].tolist()) <= now and not any(map(any, self._admitted.tolist()))

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


class WaitBudgets(NamedTuple):
    """The longest expected wait, in seconds, at which a request of each class is accepted; in the classes' order."""

    interactive: float
    bulk: float


class Asked(NamedTuple):
    """The work that a request asks for."""

    model: int  # index
    request_class: RequestClass
    num_tokens: int  # estimated
    deadline: float = math.inf  # time.monotonic() seconds
    key: str = ""  # name of the API key
    num_seqs: int = 1
    needs_memory: bool = False  # whether it stands behind those whose rows wait for memory
    least_tokens: int | None = None  # it has no fewer, that is sure; None = num_tokens are not estimated


class Admission:
    """Decides in one frontend which requests come in. `clock` gives time.monotonic() seconds."""

    def __init__(
        self,
        page: Page,
        *,
        frontend: int,
        budgets: WaitBudgets,
        max_requests: int,
        max_held_bytes: int = MAX_HELD_BYTES,
        keys: Sequence[ApiKey] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._page = page
        # one view a model: numpy itself takes three times as long to add to one number
        self._admitted = [memoryview(cells) for cells in page.admitted_tokens[frontend]]
        self._admitted_by_key = [memoryview(cells) for cells in page.admitted_by_key[frontend]]
        self._kept_back = [memoryview(cells) for cells in page.kept_back_tokens[frontend]]
        self._models = [ModelPage(page, model) for model in range(page.num_models)]
        self._budgets = budgets
        self.requests = OpenRequests(max_requests)
        self.streams = OpenRequests(max_requests)  # of lines or messages, which last: they take no request's place
        self.unread = OpenRequests(max_requests)  # of a library that goes on with calls whose clients do not read
        self._keys = KeyShares(keys, KeyPlaces(page))
        self._row_memory = {
            request_class: self._new_row_memory(max_held_bytes * quarters // 4, budgets[request_class])
            for request_class, quarters in _QUARTERS_OF_MEMORY.items()
        }
        self._clock = clock
        self._ceilings = KeyCeilings(page, frontend=frontend)
        self._return_times = ReturnTimes()
        # of each model by key; "" has what all keys have sent
        self._tokens_per_character = [{"": _USUAL_RATIO} for _ in range(page.num_models)]
        self.num_kept_back = 0  # tokens that wait here until there is memory for their rows; to be read only

    @property
    def are_keys_several(self) -> bool:
        """Whether a key has only a part of what bounds all."""
        return self._keys.are_several

    def _new_row_memory(self, max_bytes: int, max_wait: float) -> RowMemory:
        """Memory of which one of several keys may take half."""
        return RowMemory(max_bytes, max_wait=max_wait, max_of_key=max_bytes // 2 if self.are_keys_several else None)

    def renew_keys(self, keys: Sequence[ApiKey]) -> None:
        """The key file has changed."""
        self._keys.renew(keys)
        names = {"", *(key.name for key in keys)}
        for ratios in self._tokens_per_character:
            for name in ratios.keys() - names:
                del ratios[name]

    def estimate(self, model: int, num_characters: int, num_texts: int, *, key: str = "") -> int:
        """The number of tokens that texts of this key will probably have."""
        ratios = self._tokens_per_character[model]
        return int(num_characters * ratios.get(key, ratios[""])) + _SPECIAL_TOKENS * num_texts

    def learn(self, model: int, num_characters: int, num_tokens: int, num_texts: int = 0, *, key: str = "") -> None:
        """Learn from texts of which nothing was cut off: by their characters, without what a model adds to each."""
        if not num_characters:
            return
        ratio = max(0, num_tokens - _SPECIAL_TOKENS * num_texts) / num_characters
        counted = min(num_characters, _HISTORY)
        weight = counted / (counted + _HISTORY)
        ratios = self._tokens_per_character[model]
        of_all = ratios[""]
        if key:
            own = ratios.get(key, of_all)
            ratios[key] = own + (ratio - own) * weight
        ratios[""] = of_all + (ratio - of_all) * weight

    def row_memory_of(self, request_class: RequestClass | None) -> RowMemory:
        """The memory where large rows and answers of a class are counted; None is of what no engine computes."""
        return self._row_memory[RequestClass.INTERACTIVE if request_class is None else request_class]

    def admit(self, asked: Asked) -> "Admitted":
        """Let a request in.

        Raises Overloaded for one that would wait too long behind the others or be late for its own deadline, or whose
        key has used its tokens of this minute; InvalidRequest if the key may never send as much. An estimate of more
        than that counts as all that it may: how many there are is known when it is tokenized.
        """
        now = self._clock()
        key = self._keys.of(asked.key)
        self._check_wait(asked, key, now)
        if key.tokens_per_minute is not None:
            least = asked.num_tokens if asked.least_tokens is None else asked.least_tokens
            self._check_ever(key.tokens_per_minute, least)
            asked = asked._replace(num_tokens=min(asked.num_tokens, key.tokens_per_minute))
            self._check_ceiling(asked, key, key.tokens_per_minute, now)
            self._ceilings.spend(key, asked.num_tokens, now)
        return Admitted(self, asked, key)

    def allowance(self, key_name: str) -> Allowance | None:
        """The tokens that the key of this name may still send; None where it has no ceiling."""
        key = self._keys.of(key_name)
        return None if key.tokens_per_minute is None else self._ceilings.allowance(key, self._clock())

    def count(self, asked: Asked, key: KeyShare, num_tokens: int) -> None:
        """Count tokens as let in, or as answered where less than none."""
        self._admitted[asked.model][asked.request_class] += num_tokens
        if self._keys.are_several:
            self._admitted_by_key[asked.model][asked.request_class, key.index] += num_tokens

    def keep_back(self, asked: Asked, key: KeyShare, num_tokens: int) -> None:
        """Count tokens that were let in as waiting for room; less than none when they have it."""
        self.count(asked, key, -num_tokens)
        self.num_kept_back += num_tokens
        self._kept_back[asked.model][asked.request_class, key.index] += num_tokens

    def correct_spent(self, key: KeyShare, estimated: int, num_tokens: int) -> None:
        """Count the true number as spent, in place of the estimate. Raises InvalidRequest if the key may never
        send as many; it has spent nothing then."""
        if key.tokens_per_minute is not None:
            self._ceilings.spend(key, -estimated, self._clock())
            self._check_ever(key.tokens_per_minute, num_tokens)
            self._ceilings.spend(key, num_tokens, self._clock())

    def _check_wait(self, asked: Asked, key: KeyShare, now: float) -> None:
        model, has_time = self._models[asked.model], asked.deadline == math.inf and not asked.needs_memory
        if has_time and model.is_idle(asked.request_class, now):
            return
        ahead = model.ahead(asked.request_class, now, needs_memory=asked.needs_memory)
        if not ahead.tokens_per_second or (over := self._seconds_over(asked, ahead, now, part=1.0)) <= 0:
            return
        turn = _ALONE
        if self._keys.are_several:
            queued = model.queued_by_key(asked.request_class, needs_memory=asked.needs_memory)
            turn = self._keys.turn(key, asked.num_tokens, queued)
            if (over := self._seconds_over(asked, ahead, now, part=turn.ahead)) <= 0:
                return
        raise self._overloaded(asked, ahead, over, key, turn, now)

    def _seconds_over(self, asked: Asked, ahead: Ahead, now: float, *, part: float) -> float:
        """The seconds by which the request would wait too long; 0 or less where it would not."""
        rate = ahead.tokens_per_second
        tokens = ahead.tokens(asked.request_class, part)
        wait = ahead.busy_seconds + tokens / rate
        over = wait - self._budgets[asked.request_class]
        if now < asked.deadline < math.inf and not (
            ahead.is_idle and self._models[asked.model].is_forecast_old(now)  # then it is tried
        ):
            in_one_batch = (tokens + asked.num_tokens) / rate
            alone = asked.num_tokens / self._models[asked.model].rate_of_one(asked.num_seqs)
            computing = max(alone, min(ahead.batch_seconds or in_one_batch, in_one_batch))
            over = max(over, _SPARE * (wait + computing) - (asked.deadline - now))
        return over

    def _overloaded(self, asked: Asked, ahead: Ahead, over: float, key: KeyShare, turn: Turn, now: float) -> Overloaded:
        """The refusal, with a time at which the request will probably be let in."""
        rate = ahead.tokens_per_second * turn.of_engines / self._page.num_frontends
        line = (asked.model, asked.request_class, key.index)
        retry_after = over + self._return_times.take(line, asked.num_tokens / rate, now)
        wait = ahead.busy_seconds + ahead.tokens(asked.request_class, turn.ahead) / ahead.tokens_per_second
        if wait <= self._budgets[asked.request_class]:
            message, reason = "too much work is waiting to answer this request by its deadline", "deadline_wait"
        elif turn.is_over:
            message, reason = "too much work of this API key is waiting already", "key_share"
        else:
            message, reason = "too much work is waiting to answer this request in time", "wait"
        return Overloaded(message, retry_after=retry_after, reason=reason)

    def _check_ceiling(self, asked: Asked, key: KeyShare, ceiling: int, now: float) -> None:
        if seconds := self._ceilings.seconds_until_room(key, asked.num_tokens, now):
            message = f"this API key may send {ceiling} tokens a minute, and has sent them"
            raise Overloaded(message, retry_after=seconds, reason="key_limit")

    def _check_ever(self, ceiling: int, num_tokens: int) -> None:
        if num_tokens > ceiling:
            message = f"the request has more tokens than its API key may send in a minute, which is {ceiling}"
            raise InvalidRequest(message, reason="key_limit")


class Admitted:
    """A request that was let in. Its tokens count as work ahead of others until the block ends."""

    __slots__ = ("_admission", "_num_tokens", "asked", "key")

    def __init__(self, admission: Admission, asked: Asked, key: KeyShare) -> None:
        self.asked = asked
        self.key = key
        self._admission = admission
        self._num_tokens = asked.num_tokens

    def __enter__(self) -> "Admitted":
        self._admission.count(self.asked, self.key, self._num_tokens)
        return self

    def correct(self, num_tokens: int) -> None:
        """Count the true number of tokens in place of the estimate. Raises InvalidRequest, as
        `Admission.correct_spent`."""
        missing = num_tokens - self._num_tokens
        if missing:
            estimated, self._num_tokens = self._num_tokens, num_tokens
            self._admission.count(self.asked, self.key, missing)
            self._admission.correct_spent(self.key, estimated, num_tokens)

    def computes(self, num_tokens: int) -> None:
        """Count so many as work ahead of others: some of a request's tokens are computed once for several of its
        texts. Its key has spent all of them."""
        if num_tokens != self._num_tokens:
            self._admission.count(self.asked, self.key, num_tokens - self._num_tokens)
            self._num_tokens = num_tokens

    @contextlib.contextmanager
    def kept_back(self) -> Iterator[None]:
        """Counts a request as waiting for room while the block runs. Its tokens go to no engine, so only others that
        wait there too are behind them."""
        self._admission.keep_back(self.asked, self.key, self._num_tokens)
        try:
            yield
        finally:
            self._admission.keep_back(self.asked, self.key, -self._num_tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._admission.count(self.asked, self.key, -self._num_tokens)


class ReturnTimes:
    """The slots of each line of refused requests, so that they find room and don't come back together.

    Slots are given one after another. A slot is as long as the work it stands for takes at a part of the engines'
    speed; the rest is left for new requests. A burst that is refused for some seconds comes back over some minutes. A
    slot that nobody comes back for is lost.
    """

    def __init__(self) -> None:
        self._next_slots: dict[Hashable, float] = {}  # by line: time.monotonic() seconds

    def take(self, line: Hashable, seconds: float, now: float) -> float:
        """Seconds from now to a slot for work that takes so many seconds."""
        slot = max(now, self._next_slots.get(line, now))
        if slot - now > _LONGEST_RETURN:
            slot = now
        self._next_slots[line] = slot + seconds / _RETURN_PART
        return slot - now


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
