"""The simulation of fleets: every request ends, the same seed gives the same, and small cases computed by hand."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fleet import machines, scaling, traces
from benchmarks.fleet.autoscalers import Rules, Scaler, Seen, Wish, by_rate, by_requests, by_tokens
from benchmarks.fleet.fifo import FifoReplica
from benchmarks.fleet.figures import figures
from benchmarks.fleet.fleet import BALANCERS, MAX_PARKED, Course, Fleet
from benchmarks.fleet.machines import Machine, MachineError
from benchmarks.fleet.traces import Stream, Trace, TraceError

# 1,000 tokens a second and 0.1 s a batch; two minutes to start
SLOW = Machine(
    name="slow", tokens_per_second=1000, batch_seconds=0.1, start_seconds=120, price_per_hour=3, source="a test"
)
STREAM = Stream(
    tokens_per_second=2500,
    max_texts=64,
    tokens_per_text=10,
    peak_hour=0,
    swing=0.9,
    num_bursts=5000,
    burst_seconds=10,
)
RULES = Rules()


def trace_of(*requests: tuple[float, int, int]) -> Trace:
    """Of (seconds, texts, tokens)."""
    at, texts, tokens = zip(*requests, strict=True)
    return Trace(np.array(at, np.float64), np.array(texts), np.array(tokens))


def run(
    trace: Trace, wish: Wish | None = None, *, rules: Rules = RULES, first: int = 1, balance: str = "round-robin"
) -> Course:
    return Fleet(trace, SLOW, Scaler(rules, wish), balancer=BALANCERS[balance], num_first=first).run()


def seen(now: float, num_replicas: int, **more: float) -> Seen:
    fields = {"num_requests": 0, "num_parked": 0, "num_tokens": 0, "oldest_wait": 0.0} | more
    return Seen(now=now, num_replicas=num_replicas, **fields)  # type: ignore[arg-type]


def test_latencies_are_those_computed_by_hand() -> None:
    """The second waits for the first; the third goes to the other replica, the fourth behind the second."""
    course = run(trace_of((0, 1, 100), (0, 1, 50), (0.05, 1, 200), (0.1, 1, 30)), first=2)
    # replica 0: 0.2 s for 100 tokens, then 0.3 s for 200; replica 1: 0.15 s for 50, then 0.13 s for 30
    assert course.latencies == pytest.approx([0.2, 0.15, 0.45, 0.18])
    assert course.replica_seconds == pytest.approx(2 * 0.5)
    assert course.busy_seconds == pytest.approx(0.78)


def test_what_waits_together_is_computed_in_one_batch() -> None:
    course = run(trace_of((0, 1, 100), (0.01, 1, 50), (0.02, 1, 50), (0.03, 1, 50)))
    # behind the first the engine stages a batch once as many tokens wait: the next two, which take 0.2 s
    assert course.latencies == pytest.approx([0.2, 0.39, 0.38, 0.52])


def test_http_and_tokenizing_are_added_to_each_request() -> None:
    machine = replace(SLOW, request_seconds=0.01, tokenized_per_second=10_000)
    trace = trace_of((0, 1, 100), (5, 1, 200))
    fleet = Fleet(trace, machine, Scaler(RULES, None), balancer=BALANCERS["round-robin"])
    assert fleet.run().latencies == pytest.approx([0.22, 0.33])


@pytest.mark.parametrize(
    ("wish", "balance"),
    [
        (by_requests(3.0), "round-robin"),
        (by_tokens(2000.0, max_wait=5.0), "least-requests"),
        (by_tokens(500.0), "least-tokens"),
        (by_rate(1000.0, 0.5), "least-requests"),
    ],
)
def test_every_request_ends_while_replicas_come_and_go(wish: Wish, balance: str) -> None:
    trace = traces.draw((STREAM,), seed=3, hours=0.05)
    rules = Rules(min_replicas=0, max_replicas=6, window=10, delay=60, rate=1)
    course = run(trace, wish, rules=rules, first=0, balance=balance)
    found = figures(trace, SLOW, course)
    assert len(course.latencies) == len(trace) > 100
    assert sum(math.isinf(one) for one in course.latencies) == course.num_refused == found["refused"]
    assert all(one > 0 for one in course.latencies)
    assert 1 < found["most replicas"] <= 6
    assert found["cost"] == 3 * found["replica hours"] > 0


def test_the_same_seed_gives_the_same_course() -> None:
    trace, again = (traces.draw((STREAM,), seed=4, hours=0.01) for _ in range(2))
    assert run(trace, by_tokens(2000)) == run(again, by_tokens(2000))


def test_a_replica_costs_while_it_starts_and_takes_requests_after_it() -> None:
    course = run(trace_of((0, 1, 100)), by_tokens(1000), rules=Rules(min_replicas=0, period=2.0), first=0)
    # one is ordered at the look after the first request was parked, at 2 s
    assert course.latencies == pytest.approx([122.2])
    assert course.replica_seconds == pytest.approx(120.2)


def test_without_a_replica_so_many_are_parked_and_more_are_refused() -> None:
    trace = trace_of(*[(0.0, 1, 1)] * (MAX_PARKED + 5))
    assert run(trace, by_tokens(1000), rules=Rules(min_replicas=0), first=0).num_refused == 5


def test_simplified_servers_compute_bulk_in_order_and_queries_before_it() -> None:
    trace = trace_of((0, 64, 2000), (0, 64, 1000), (0.5, 1, 100), (9, 1, 100))
    fleet = Fleet(trace, SLOW, Scaler(RULES, None), balancer=BALANCERS["round-robin"], server=FifoReplica)
    course = fleet.run()
    assert course.latencies == pytest.approx([2.1, 3.2, 0.2, 0.2])
    assert course.busy_seconds == pytest.approx(3.6)


def test_the_server_refuses_what_would_wait_too_long() -> None:
    """A hundred queries of a second each, and ten seconds that one may wait."""
    course = run(trace_of(*[(0.001 * number, 1, 1000) for number in range(100)]))
    assert 80 <= course.num_refused <= 92


def test_it_goes_up_at_once_and_down_by_half_of_the_excess_after_the_delay() -> None:
    scaler = Scaler(Rules(window=0, delay=100, rate=0.5, max_replicas=20), by_requests(2.0))
    assert scaler.look(seen(0, 1, num_requests=19)) == 10
    assert scaler.look(seen(50, 10, num_requests=2)) == 10
    assert scaler.look(seen(101, 10, num_requests=2)) == 5
    assert scaler.look(seen(150, 5, num_requests=2)) == 5
    assert scaler.look(seen(201, 5, num_requests=2)) == 3
    assert scaler.look(seen(202, 3, num_requests=999)) == 20


def test_a_wish_is_averaged_over_the_window() -> None:
    scaler = Scaler(Rules(window=10), by_tokens(100.0))
    assert scaler.look(seen(0, 1, num_tokens=100)) == 1
    assert scaler.look(seen(5, 1, num_tokens=700)) == 4
    assert scaler.look(seen(12, 1, num_tokens=700)) == 7


def test_by_tokens_follows_the_oldest_wait_too_and_parked_requests() -> None:
    wish = by_tokens(100.0, max_wait=10.0)
    assert wish(seen(0, 4, num_tokens=50, oldest_wait=10.0)) == 0.5
    assert wish(seen(0, 4, num_tokens=50, oldest_wait=15.0)) == 6
    assert wish(seen(0, 0, num_parked=7)) == 1


def test_by_rate_counts_what_was_computed_of_late_and_what_waits() -> None:
    wish = by_rate(1000.0, 0.5, wait=60.0, window=300.0)
    assert wish(seen(0, 1, computed_tokens=0, num_tokens=120_000)) == 2
    assert wish(seen(100, 1, computed_tokens=150_000)) == 3
    assert wish(seen(400, 1, computed_tokens=300_000, num_tokens=60_000)) == 2
    assert wish(seen(800, 0, computed_tokens=300_000, num_parked=7)) == 1


def test_the_fleet_counts_what_its_replicas_computed_also_those_that_have_ended() -> None:
    looks: list[Seen] = []

    def wish(one: Seen) -> float:
        looks.append(one)
        return 2 if one.now < 5 else min(1, one.num_parked)

    trace = trace_of((0, 1, 100), (300, 1, 50), (425, 1, 10))
    run(trace, wish, rules=Rules(window=0, delay=10, rate=1, min_replicas=0), first=1)
    assert looks[1].computed_tokens == 100
    assert max(one.computed_tokens for one in looks) == 150
    assert {one.num_replicas for one in looks} >= {0, 2}


def test_curves_are_compared_at_equal_p99() -> None:
    one, other = [(10.0, 10.0), (5.0, 1000.0)], [(8.0, 10.0), (4.0, 1000.0)]
    assert scaling.hours_at(100.0, one) == pytest.approx(7.5)
    assert math.isnan(scaling.hours_at(9.0, one))
    first, last = scaling.mean_curve([one, [(20.0, 1000.0), (5.0, 1000.0)]])
    assert first == pytest.approx((15.0, 100.0))
    assert last == pytest.approx((5.0, 1000.0))
    assert scaling.less(100.0, [one, one], [other, one]) == "7 (-10%; -20% to +0%)"
    assert scaling.less(9.0, [one], [other]) == "beyond the targets"


def test_a_drawn_trace_has_the_tokens_and_texts_that_were_asked_for() -> None:
    stream = Stream(tokens_per_second=1000, max_texts=2048, tokens_per_text=20, peak_hour=12, swing=0.8)
    trace = traces.draw((stream,), seed=5, load=2.0)
    assert trace.tokens.sum() / (24 * traces.HOUR) == pytest.approx(2000, rel=0.05)
    assert trace.texts.min() == 1
    assert 2000 < trace.texts.max() <= 2048
    by_hour, _ = np.histogram(trace.at, 24, (0, 24 * traces.HOUR))
    assert by_hour[11:13].sum() > 5 * by_hour[[0, 23]].sum()


def test_a_trace_is_written_and_read(tmp_path: Path) -> None:
    trace = traces.draw((STREAM,), seed=6, hours=0.01)
    trace.write(tmp_path / "a.csv")
    again = traces.read(tmp_path / "a.csv")
    assert again.at == pytest.approx(trace.at, abs=1e-4)
    assert again.texts.tolist() == trace.texts.tolist()
    assert again.tokens.tolist() == trace.tokens.tolist()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seconds,texts\n1,2\n", "lacks the column tokens"),
        ("seconds,texts,tokens\n", "has no requests"),
        ("seconds,texts,tokens\n1,two,3\n", "line 2 of a.csv has something that is not a number"),
        ("seconds,texts,tokens\n1,3,2\n", "tokens at least as many as texts"),
        ("seconds,texts,tokens\nnan,1,2\n", "seconds must be 0 or more"),
    ],
)
def test_a_trace_that_is_wrong_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(TraceError, match=problem):
        traces.read(tmp_path / "a.csv")


OWN = 'tokens_per_second = 5e4\nbatch_seconds = 0.01\nstart_seconds = 90\nprice_per_hour = 1\nsource = "ours"\n'


def test_machines_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"[own]\n{OWN}num_engines = 2\n")
    own = machines.known(tmp_path / "a.toml")["own"]
    assert own.seconds_of(1000) == pytest.approx(0.01 + 1000 / 25_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "x must be a table"),
        (f"[own]\n{OWN}speed = 1", "own.speed is unknown"),
        (f"[own]\n{OWN}num_engines = '2'", "own.num_engines has the wrong type"),
        (f"[own]\n{OWN}num_engines = 0", "num_engines of 'own' must be above 0"),
        ("[own]\nsource = 'x'", "own: missing 4 required keyword"),
        ("[", "a.toml is not TOML"),
    ],
)
def test_a_file_of_machines_that_is_wrong_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(MachineError, match=problem):
        machines.known(tmp_path / "a.toml")


def test_every_machine_says_where_its_figures_come_from() -> None:
    for machine in machines.known().values():
        assert "measured" in machine.source
        assert "assumption" in machine.source
