"""A process that served is started again at once; one that never gets that far, slower each time."""

import signal
from dataclasses import dataclass
from typing import cast

import pytest

from server.supervisor.child import ChildProcess
from server.supervisor.supervisor import Restarts


@dataclass(eq=False)
class Fallen:
    """What is looked at of a process that fell."""

    stage: str = "weights"


def a_child() -> ChildProcess:
    return cast(ChildProcess, Fallen())


@pytest.mark.holds("When a process dies")
def test_a_process_that_served_for_long_is_started_at_once() -> None:
    restarts, child = Restarts(), a_child()

    for life in range(10):
        restarts.succeeded(child, now=100.0 * life)
        assert restarts.failed(child, now=100.0 * life + 60) == 0
    assert not restarts.has_given_up(child)


@pytest.mark.holds("When a process dies")
def test_short_lives_in_a_row_are_slowed_down_but_never_given_up() -> None:
    restarts, child = Restarts(), a_child()

    delays = []
    for life in range(20):
        restarts.succeeded(child, now=10.0 * life)
        delays.append(restarts.failed(child, now=10.0 * life + 1))

    assert delays[0] == 0
    assert all(0 < delay <= 1 for delay in delays[1:])
    assert not restarts.has_given_up(child)


@pytest.mark.holds("When a process dies")
def test_one_that_never_serves_waits_longer_each_time_until_there_is_no_hope() -> None:
    restarts, child = Restarts(), a_child()

    delays, hopes = [], []
    for _ in range(6):
        delays.append(restarts.failed(child, now=0))
        hopes.append(not restarts.has_given_up(child))

    assert delays == [0.0, 0.5, 2.0, 5.0, 15.0, 15.0]
    assert hopes == [True, True, True, True, False, False]


def test_serving_once_clears_the_count() -> None:
    restarts, child = Restarts(), a_child()
    for _ in range(5):
        restarts.failed(child, now=0)
    assert not restarts.has_served(child)

    restarts.succeeded(child, now=1)

    assert restarts.has_served(child)
    assert not restarts.has_given_up(child)
    assert restarts.failed(child, now=100) == 0


def test_each_process_has_its_own_count() -> None:
    restarts, unlucky, other = Restarts(), a_child(), a_child()
    for _ in range(5):
        restarts.failed(unlucky, now=0)

    assert restarts.failed(other, now=0) == 0
    assert not restarts.has_given_up(other)


SEGV, ABRT = signal.SIGSEGV, signal.SIGABRT


@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize("number", [SEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, ABRT])
def test_the_same_fault_in_the_same_stage_is_not_tried_a_third_time(number: int) -> None:
    restarts, child = Restarts(), a_child()

    assert restarts.failed(child, 0, -number) == 0
    assert not restarts.has_given_up(child)

    assert restarts.failed(child, 0, -number) == 15.0  # where another does its work
    assert restarts.has_given_up(child)


@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize(
    "deaths",
    [
        [(-signal.SIGKILL, "weights")] * 4,
        [(1, "weights")] * 4,
        [(None, "weights")] * 4,  # it could not be started
        [(-SEGV, "weights"), (-SEGV, "graphs")] * 2,
        [(-SEGV, "weights"), (-ABRT, "weights")] * 2,
        [(-SEGV, "weights"), (-signal.SIGKILL, "weights"), (-SEGV, "weights")],
        [(-SEGV, "weights"), (None, "weights"), (-SEGV, "weights")],
    ],
)
def test_other_deaths_are_tried_again(deaths: list[tuple[int | None, str]]) -> None:
    restarts, child = Restarts(), a_child()
    for returncode, stage in deaths:
        child.stage = stage
        restarts.failed(child, 0, returncode)
        assert not restarts.has_given_up(child)


def test_a_process_that_served_may_fault_twice() -> None:
    restarts, child = Restarts(), a_child()
    restarts.failed(child, 0, -SEGV)
    restarts.succeeded(child, now=0)
    for _ in range(3):  # the first while it serves
        restarts.failed(child, 60, -SEGV)
    assert not restarts.has_given_up(child)
