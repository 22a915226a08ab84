"""The loads and limits of the overload tests, and how much of what one engine can do went into answers."""

import math
from typing import Any

from batch_manager.messages import Policy
from engine.types import EngineLimits
from server.requests.admission import WaitBudgets
from tests.batch_manager.simulator import FIXED_SECONDS, TOKENS_PER_SECOND, Load, Simulator
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
DEADLINE = 1.0  # seconds
POLICY = Policy()
BATCH_TOKENS = 16_384
LIMITS = EngineLimits(
    max_num_tokens=BATCH_TOKENS,
    max_num_seqs=2048,
    max_seqlen=512,
    tokens_per_second=0.97 * TOKENS_PER_SECOND,
    max_batch_seconds=0.25,
    max_batch_seconds_mixed=0.033,
)
# What an engine computes in full batches.
CAPACITY = BATCH_TOKENS / (FIXED_SECONDS + BATCH_TOKENS / TOKENS_PER_SECOND)
SMALL = WaitBudgets(interactive=0.25, bulk=10.0)
LARGE = WaitBudgets(interactive=10.0, bulk=300.0)  # the defaults


def simulator(*, seed: int = 1, budgets: WaitBudgets = LARGE, **more: Any) -> Simulator:
    return Simulator(POLICY, LIMITS, seed=seed, budgets=budgets, **more)


def queries(times: float, **more: Any) -> Load:
    """Single texts, so many times what one engine can do."""
    return Load(INTERACTIVE, times * CAPACITY, 1, (200, 500), **{"timeout": DEADLINE, **more})


def bulk(times: float, **more: Any) -> Load:
    """Requests of 32 texts."""
    return Load(BULK, times * CAPACITY, 32, (200, 400), **{"timeout": 30.0, **more})


def goodput(run: Simulator) -> float:
    """What part of the capacity went into answers that came in time, while requests came."""
    return sum(outcome.tokens for outcome in run.outcomes.values()) / (CAPACITY * run.seconds)


def p99_between(run: Simulator, first: float, last: float) -> float:
    """Of the answers that came between these seconds."""
    seconds = sorted(latency for at, latency in run.answered if first <= at < last)
    return seconds[int(0.99 * (len(seconds) - 1))] if seconds else math.nan
