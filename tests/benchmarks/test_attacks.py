"""The benchmark of attacks: each attack meets the answers it should, and what is made of the figures."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from benchmarks.attacks.__main__ import MAX_GROWTH_MB, MAX_GROWTH_OF_KEY_MB, Found, attacked_server, cells
from benchmarks.attacks.attack import Attack
from benchmarks.attacks.attacker import Seen, Visit, attacking
from benchmarks.attacks.catalogue import ATTACKS
from benchmarks.attacks.keyed import KEYED_ATTACKS
from benchmarks.attacks.watched import Period, Watched
from benchmarks.measuring.loop_lag import heartbeats, lag_percentile

MAX_TRIES = 10


def period(latency_ms: float, **fields: Any) -> Period:
    return Period(latencies_ms=[latency_ms] * 100, **fields)


@pytest.mark.parametrize(
    ("quiet", "attacked", "num_dead", "holds"),
    [
        (period(10), period(15), 0, True),
        (period(10), period(16), 0, False),
        (period(10), period(10, failures=Counter({"HTTP 503": 1})), 0, False),
        (period(10, failures=Counter({"connection lost": 1})), period(10), 0, False),
        (period(10, pss_mb=100, peaks_mb=100), period(10, pss_mb=300, peaks_mb=300), 0, True),
        (period(10, pss_mb=100), period(10, pss_mb=301), 0, False),
        (period(10, peaks_mb=100), period(10, peaks_mb=301), 0, False),
        (period(10), period(10), 1, False),
    ],
)
def test_when_an_attack_is_withstood(quiet: Period, attacked: Period, num_dead: int, holds: bool) -> None:
    found = Found(num_dead=num_dead)
    found.add(quiet, attacked)
    assert found.holds == holds


def test_the_mean_of_the_rounds_counts_and_the_worst_is_shown() -> None:
    found = Found(seen=Seen(seconds=1.0))
    found.add(period(10), period(18))
    found.add(period(20), period(20))
    assert found.holds
    assert cells(ATTACKS[0], found)["p99, times quiet"] == "1.40, at worst 1.80"


@pytest.mark.parametrize("size", [1, 5, 13, 1000])
def test_answers_are_counted_however_the_network_cuts_them_up(size: int) -> None:
    async def count() -> Seen:
        seen, reader = Seen(), asyncio.StreamReader()
        attack = Attack(name="", pieces=lambda: iter([]), connections=1, every=1, answers=math.inf)
        answers = b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 HTTP/1.1 431 Too\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
        for start in range(0, len(answers), size):
            reader.feed_data(answers[start : start + size])
        reader.feed_eof()
        await Visit(attack, seen, reader, cast(asyncio.StreamWriter, None)).read()
        return seen

    assert asyncio.run(count()).outcomes == {"200": 2, "431": 1, "closed by the server": 1}


def test_how_late_loops_were_is_read_from_metrics() -> None:
    name = "embedline_event_loop_lag_seconds"

    def page(*numbers: int) -> str:
        edges = ("0.001", "0.01", "0.1", "+Inf")
        lines = [
            f'{name}_bucket{{role="{role}",le="{edge}"}} {number}'
            for role in "ab"
            for edge, number in zip(edges, numbers, strict=True)
        ]
        return "\n".join([f"# TYPE {name} histogram", *lines, ""])

    before, after = heartbeats(page(5, 5, 5, 5)), heartbeats(page(5, 94, 105, 105))
    assert after[math.inf] == 210
    assert lag_percentile(before, after, 50) == 0.01
    assert lag_percentile(before, after, 99) == 0.1
    assert math.isnan(lag_percentile(after, after, 99))


@pytest.fixture(scope="module", params=[False, True], ids=["open", "keys"])
def attacked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[bool, Watched, int, int]]:
    """Whether it has keys, the benchmark's server with its good clients, its port, and its monitor's."""
    with attacked_server(tmp_path_factory.mktemp("attacked"), has_keys=request.param) as server:
        yield request.param, *server


def others_are_answered(attack: Attack, server: tuple[Watched, int, int], *, max_growth_mb: float) -> float:
    """The MB by which memory grew."""
    watched, port, monitor = server
    processes, quiet = watched.processes(), watched.period(1.0, seed=1, beside=attack.beside)
    seen, during, tries = Seen(), Period(), 0
    # the attacker gives way to everybody, and on a busy machine it may not get far, so each try is longer
    while tries == 0 or (tries < MAX_TRIES and not (attack.expected <= seen.outcomes.keys())):
        with attacking(attack, monitor if attack.is_on_monitor else port, seen):
            during.add(watched.period(1.5 * (tries + 1), seed=2, beside=attack.beside))
        tries += 1
    after = watched.period(0.5, seed=3)

    assert not quiet.failures + during.failures + after.failures
    assert after.latencies_ms
    if attack.expected:
        assert {outcome for outcome in seen.outcomes if outcome.isdecimal()} == attack.expected, seen.outcomes
    assert during.pss_mb - quiet.pss_mb <= max_growth_mb
    assert processes <= watched.processes()
    return during.pss_mb - quiet.pss_mb


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Limits", "Memory stays flat", "Every bound")
@pytest.mark.parametrize("number", range(max(len(ATTACKS), len(KEYED_ATTACKS))))
def test_others_are_answered_and_memory_is_bounded_during_an_attack(
    number: int, attacked: tuple[bool, Watched, int, int], reached: Callable[[str, str], None]
) -> None:
    has_keys, watched, port, monitor = attacked
    attacks = KEYED_ATTACKS if has_keys else ATTACKS
    if number >= len(attacks):
        return
    most = MAX_GROWTH_OF_KEY_MB if has_keys else MAX_GROWTH_MB
    grown = others_are_answered(attacks[number], (watched, port, monitor), max_growth_mb=most)
    reached("attacks", f"{attacks[number].name}: memory grew by {grown:.0f} MB")
