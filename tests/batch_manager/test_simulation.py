"""Seeded runs of the simulator: what two classes, small batches and retries come to over many seconds."""

import dataclasses
import math
from collections import Counter

import pytest

from batch_manager.messages import Policy, RequestRefusal
from engine.types import EngineLimits
from server.requests.admission import WaitBudgets
from tests.batch_manager.simulator import TOKENS_PER_SECOND, Load, Simulator
from wire.vocabulary import RequestClass

INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
POLICY = Policy()
LIMITS = EngineLimits(
    max_num_tokens=16_384,
    max_num_seqs=2048,
    max_seqlen=512,
    tokens_per_second=0.97 * TOKENS_PER_SECOND,
    max_batch_seconds=0.2,
    max_batch_seconds_mixed=0.025,
)


def queries(share: float) -> Load:
    """Single texts, this part of what one engine can do."""
    return Load(INTERACTIVE, share * TOKENS_PER_SECOND, 1, (10, 60), timeout=1.0)


def bulk(share: float) -> Load:
    """Requests of 32 texts, this part of what one engine can do."""
    return Load(BULK, share * TOKENS_PER_SECOND, 32, (200, 400), timeout=30.0)


def rates(simulator: Simulator) -> tuple[float, float]:
    """What part of what one engine can do went into answers, by class."""
    capacity = TOKENS_PER_SECOND * simulator.seconds
    return simulator.outcomes[INTERACTIVE].tokens / capacity, simulator.outcomes[BULK].tokens / capacity


def test_rare_queries_do_not_wait_for_the_long_batches_of_bulk_alone() -> None:
    """About three a second: batches stay short in between, since the last one is remembered."""
    medians = []
    for memory in (0.0, 1.0):
        simulator = Simulator(dataclasses.replace(POLICY, interactive_memory=memory), LIMITS, seed=2)
        simulator.run([queries(0.001), bulk(1.2)], 20.0)
        medians.append(simulator.outcomes[INTERACTIVE].percentile(0.5))
    assert medians[1] <= 0.5 * medians[0]


@pytest.mark.full
@pytest.mark.holds("Two classes of work")
def test_bulk_keeps_its_share_beside_too_many_queries() -> None:
    simulator = Simulator(POLICY, LIMITS, seed=3)
    simulator.run([queries(1.5), bulk(1.0)], 8.0)
    interactive_rate, bulk_rate = rates(simulator)
    assert bulk_rate / (interactive_rate + bulk_rate) == pytest.approx(0.3, abs=0.03)
    assert simulator.outcomes[INTERACTIVE].percentile(0.99) <= 0.5


def test_deaths_cost_retries_and_no_answers() -> None:
    simulator = Simulator(POLICY, LIMITS, seed=5, num_engines=2)
    for at in range(1, 9):
        simulator.kill(at % 2, after=float(at), back_after=0.7)
    simulator.run([queries(0.3), bulk(0.7)], 10.0)
    for outcome in simulator.outcomes.values():
        assert set(outcome.refusals) <= {RequestRefusal.DEADLINE, RequestRefusal.TOO_LATE}
        assert len(outcome.latencies) + outcome.num_late + len(outcome.refusals) == outcome.num_admitted
    assert len(simulator.outcomes[INTERACTIVE].refusals) <= 0.02 * simulator.outcomes[INTERACTIVE].num_admitted
    assert not simulator.outcomes[BULK].refusals
    assert simulator.num_unanswered == 0


def test_a_long_absence_of_the_only_engine_is_told_and_survived() -> None:
    simulator = Simulator(POLICY, LIMITS, seed=6)
    simulator.kill(0, after=2.0, back_after=8.0)
    simulator.run([queries(0.2), bulk(0.3)], 14.0)
    reasons = Counter(simulator.outcomes[BULK].refusals)
    assert set(reasons) == {RequestRefusal.NO_ENGINE}
    answered = len(simulator.outcomes[BULK].latencies)
    assert answered + reasons.total() == simulator.outcomes[BULK].num_admitted
    assert answered >= 8
    assert simulator.num_unanswered == 0


@pytest.mark.holds("The scheduler is a pure state machine")
def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        simulator = Simulator(POLICY, LIMITS, seed=7)
        simulator.run([queries(0.3), bulk(0.5)], 2.0)
        runs.append((simulator.now, simulator.outcomes[INTERACTIVE].latencies, simulator.outcomes[BULK].latencies))
    assert runs[0] == runs[1]


# An H100 with an 8B model in FP8, and with one of 0.6B: seconds that a batch costs, and tokens a second beyond them.
OF_8B, OF_06B = (0.0034, 85_000.0), (0.0009, 530_000.0)


def on_a_gpu(costs: tuple[float, float], seqlen: int, *, queries_a_second: float) -> tuple[float, float]:
    """Tokens a second of too much bulk, in requests of 8 texts, and seconds within which 99 % of the queries are
    answered, of 32 tokens each; 0 without any."""
    fixed_seconds, tokens_per_second = costs
    speed = tokens_per_second / TOKENS_PER_SECOND
    limits = EngineLimits(
        max_num_tokens=16_384,
        max_num_seqs=1024,
        max_seqlen=8192,
        token_buckets=(512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384),
        puts_urgent_first=True,
        tokens_per_second=2048 / (fixed_seconds + 2048 / tokens_per_second) / speed,
        fixed_batch_seconds=fixed_seconds,
        max_batch_seconds=0.030,
        max_batch_seconds_mixed=0.010,
    )
    budgets = WaitBudgets(interactive=1e9, bulk=1e9)
    simulator = Simulator(POLICY, limits, seed=1, speeds=(speed,), budgets=budgets)
    loads = [Load(BULK, 1.5 * tokens_per_second, 8, (seqlen, seqlen), math.inf)]
    if queries_a_second:
        loads.append(Load(INTERACTIVE, 32 * queries_a_second, 1, (32, 32), math.inf))
    simulator.run(loads, 8.0)
    of_queries = simulator.outcomes[INTERACTIVE]
    slowest = of_queries.percentile(0.99) if of_queries.latencies else 0.0
    return simulator.outcomes[BULK].tokens / simulator.seconds, slowest


@pytest.mark.holds("Two classes of work")
@pytest.mark.parametrize("seqlen", [512, 128])
@pytest.mark.parametrize(("costs", "slowest"), [(OF_8B, 0.050), (OF_06B, 0.013)], ids=["8B", "0.6B"])
def test_a_gpu_keeps_bulk_beside_queries_and_answers_them_soon(
    costs: tuple[float, float], slowest: float, seqlen: int
) -> None:
    """In batches as long as its own costs ask for, and no query waits for a second batch of bulk."""
    alone, _ = on_a_gpu(costs, seqlen, queries_a_second=0.0)
    beside, taken = on_a_gpu(costs, seqlen, queries_a_second=50.0)
    assert beside >= 0.85 * alone
    assert taken <= slowest


def beside_reranks(speed: float, *, puts_urgent_first: bool, num_shared: int, group_tokens: int = 0) -> Simulator:
    """Four queries a second, and behind them requests of 100 documents with 80 tokens of template and query before
    each, half of what an engine can do that computes so many tokens a second."""
    limits = EngineLimits(
        max_num_tokens=16_384,
        max_num_seqs=1024,
        max_seqlen=8192,
        tokens_per_second=0.97 * TOKENS_PER_SECOND,
        puts_urgent_first=puts_urgent_first,
        group_tokens=group_tokens,
    )
    budgets = WaitBudgets(interactive=1e9, bulk=1e9)
    simulator = Simulator(POLICY, limits, seed=1, speeds=(speed / TOKENS_PER_SECOND,), budgets=budgets)
    documents = Load(BULK, 0.5 * speed, 100, (180, 380), math.inf, first=5.0, num_shared=num_shared)
    simulator.run([Load(INTERACTIVE, 4 * 32, 1, (32, 32), math.inf), documents], 400.0)
    assert simulator.num_unanswered == 0
    assert not simulator.page.admitted_tokens.any()
    assert not simulator.page.queued_tokens.any()
    return simulator


@pytest.mark.holds("Two classes of work")
@pytest.mark.parametrize("puts_urgent_first", [False, True])
@pytest.mark.parametrize("speed", [1000.0, 40_000.0])
def test_queries_beside_documents_that_share_a_prefix_wait_no_longer(speed: float, puts_urgent_first: bool) -> None:
    before = beside_reranks(speed, puts_urgent_first=puts_urgent_first, num_shared=0)
    for group_tokens in (0, 2048):
        simulator = beside_reranks(speed, puts_urgent_first=puts_urgent_first, num_shared=80, group_tokens=group_tokens)
        latencies = [run.outcomes[INTERACTIVE].percentile(0.99) for run in (before, simulator)]
        assert latencies[1] <= 1.1 * latencies[0]
        assert simulator.computed_tokens <= before.computed_tokens
