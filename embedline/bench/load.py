"""Sends requests and records each outcome: closed loop (a fixed number in flight) or open loop (a fixed rate).

The times at which an open loop sends are fixed before its first request. A summary has exact percentiles, by nearest
rank over every latency.
"""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embedline.bench.connection import (
    BadAnswer,
    ConnectionLost,
    ConnectionPool,
    HttpAnswer,
    HttpConnection,
    TookTooLong,
)
from embedline.bench.options import Target
from embedline.bench.requests import HttpRequest, num_tokens

_PAUSE_AFTER_FAILURE = 0.05  # seconds; a closed loop would otherwise hammer a server that refuses at once
_MAX_EXCERPT = 200  # characters kept of an answer that is an error
MAX_LAG_MS = 10.0  # p99; a generator that is later than this has measured itself
NOT_SENT = "not sent: too many in flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of one phase: for `seconds`, or `num_requests`."""

    concurrency: int  # requests in flight; the most that may be where there is a rate
    seconds: float | None = None
    num_requests: int | None = None
    rate: float | None = None  # requests a second; None = closed loop
    seed: int | None = None  # of the random gaps between requests; None = equal gaps


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are time.perf_counter() seconds."""

    due: float  # when it was to be sent
    sent: float  # when the generator came to it
    done: float
    failure: str  # "" = answered with 2xx
    num_texts: int
    num_tokens: int | None  # that the server says it read


@dataclass(slots=True)
class Phase:
    """The results of a load, while it runs and after it."""

    load: Load
    began: float = 0.0  # time.perf_counter() seconds
    samples: list[Sample] = field(default_factory=list)
    excerpts: dict[str, str] = field(default_factory=dict)  # by failure, of the first such answer's body


class Generator:
    """Connections to one server and the requests that are sent to it in turn."""

    def __init__(self, target: Target, requests: Sequence[HttpRequest], *, patience: float = 60.0) -> None:
        """`patience` is the seconds that a request may take."""
        self._requests = itertools.cycle(requests)
        self._patience = patience
        self._pool = ConnectionPool(target, patience=patience)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    async def check(self) -> None:
        """Raises ConnectionLost or TookTooLong where no connection can be opened."""
        self._pool.give_back(await self._pool.take())

    async def run(self, phase: Phase) -> None:
        """Send the phase's load and wait for every answer."""
        phase.began = time.perf_counter()
        await (self._closed_loop(phase) if phase.load.rate is None else self._open_loop(phase, phase.load.rate))

    async def _closed_loop(self, phase: Phase) -> None:
        load = phase.load
        turns = itertools.count() if load.num_requests is None else iter(range(load.num_requests))
        end = None if load.seconds is None else phase.began + load.seconds

        async def worker() -> None:
            for _ in turns:  # shared by all workers
                if end is not None and time.perf_counter() >= end:
                    return
                if not await self._send(phase, time.perf_counter()):
                    await asyncio.sleep(_PAUSE_AFTER_FAILURE)

        async with asyncio.TaskGroup() as group:
            for _ in range(load.concurrency):
                group.create_task(worker())

    async def _open_loop(self, phase: Phase, rate: float) -> None:
        load = phase.load
        times = send_times(rate, seconds=load.seconds, num_requests=load.num_requests, seed=load.seed)
        in_flight: set[asyncio.Task[bool]] = set()
        for due in (times + phase.began).tolist():
            await _sleep_until(due)
            if len(in_flight) >= load.concurrency:
                now = time.perf_counter()
                phase.samples.append(Sample(due, now, now, NOT_SENT, 0, None))
                continue
            task = asyncio.create_task(self._send(phase, due))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
        await asyncio.gather(*in_flight)

    async def _send(self, phase: Phase, due: float) -> bool:
        """Send the next request and note what became of it; whether it went well."""
        request = next(self._requests)
        sent = time.perf_counter()
        failure, answer = await self._ask(request)
        done = time.perf_counter()
        tokens = num_tokens(answer) if answer is not None and not failure else None
        phase.samples.append(Sample(due, sent, done, failure, request.num_texts, tokens))
        if failure and answer is not None and failure not in phase.excerpts:
            phase.excerpts[failure] = _one_line(answer.body)
        return not failure

    async def _ask(self, request: HttpRequest) -> tuple[str, HttpAnswer | None]:
        """The error ("" = none), and the answer where there is one."""
        connection: HttpConnection | None = None
        try:
            connection = await self._pool.take()
            answer = await connection.ask(request.payload)
        except ConnectionLost:
            return "connection lost", None
        except TookTooLong:
            return f"no answer in {self._patience:g} s", None
        except BadAnswer as error:
            return f"not HTTP: {error}", None
        finally:
            if connection is not None:
                self._pool.give_back(connection)
        return "" if answer.status // 100 == 2 else f"HTTP {answer.status}", answer


async def _sleep_until(due: float) -> None:
    """Never less: an event loop's timers count whole milliseconds, and uvloop's may end before their time."""
    await asyncio.sleep(0)  # let what was started before run, also where the schedule is behind
    while (wait := due - time.perf_counter()) > 0:  # noqa: ASYNC110 - there is no event but the time
        await asyncio.sleep(math.ceil(1000 * wait) / 1000)


def _one_line(body: bytes) -> str:
    """The beginning of a text, without what a terminal would act on."""
    text = body[:_MAX_EXCERPT].decode(errors="replace")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def send_times(
    rate: float, *, seconds: float | None = None, num_requests: int | None = None, seed: int | None = None
) -> NDArray[np.float64]:
    """Seconds from the start, ascending: at equal distances, or with a `seed` at random as independent users come.

    `num_requests` of them, or else as many as fall into `seconds`.
    """
    generator = None if seed is None else np.random.default_rng(seed)
    if num_requests is not None:
        gaps = np.full(num_requests, 1 / rate) if generator is None else generator.exponential(1 / rate, num_requests)
        times: NDArray[np.float64] = np.cumsum(gaps) - gaps[0]
        return times
    assert seconds is not None
    if generator is None:
        return np.arange(np.ceil(seconds * rate)) / rate
    # given their number, the times of a Poisson process are independent and uniform
    return np.sort(generator.uniform(0, seconds, generator.poisson(rate * seconds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Rates are over all requests that were answered with 200, and the time until the last of these answers."""

    seconds: float  # from the first request to the last answer, at least the load's own
    num_requests: int  # answered with 200
    num_texts: int  # in these
    requests_per_second: float
    texts_per_second: float
    tokens_per_second: float | None  # None where the server doesn't say how many it read
    failures: dict[str, int]  # how many requests failed in which way
    latencies_ms: list[float]  # ascending; in an open loop from when the request was to be sent
    lag_p99_ms: float | None  # of an open loop: how much later than due the generator came to a request

    @property
    def is_valid(self) -> bool:
        """Whether the generator kept to its schedule."""
        return self.lag_p99_ms is None or self.lag_p99_ms <= MAX_LAG_MS

    def percentile_ms(self, percent: float) -> float:
        """NaN where no request was answered."""
        return percentile(self.latencies_ms, percent)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least this percentage of the values does not exceed; NaN if there are none."""
    if not ordered:
        return math.nan
    # 99.9 / 100 * 1000 is a little more than 999 in binary, and rank 1000 would be one too many
    rank = math.ceil(round(percent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def summarize(phase: Phase) -> Summary:
    """The summary of a phase that has ended."""
    load = phase.load
    good = [sample for sample in phase.samples if not sample.failure]
    # what is in flight when the time is up counts, and so does the time it takes: large answers come in bursts
    seconds = max(load.seconds or 1e-9, max((sample.done for sample in good), default=0.0) - phase.began)
    num_texts = sum(sample.num_texts for sample in good)
    counts = [sample.num_tokens for sample in good if sample.num_tokens is not None]
    lags = sorted(1000 * (sample.sent - sample.due) for sample in phase.samples)
    return Summary(
        seconds=seconds,
        num_requests=len(good),
        num_texts=num_texts,
        requests_per_second=len(good) / seconds,
        texts_per_second=num_texts / seconds,
        tokens_per_second=sum(counts) / seconds if counts and len(counts) == len(good) else None,
        failures=dict(Counter(sample.failure for sample in phase.samples if sample.failure).most_common()),
        latencies_ms=sorted(1000 * (sample.done - sample.due) for sample in good),
        lag_p99_ms=None if load.rate is None else percentile(lags, 99),
    )
