"""A process that served is started again at once; one that never gets that far, slower each time."""

from typing import cast

import pytest

from server.supervisor.child import ChildProcess
from server.supervisor.restarts import Restarts


def a_child() -> ChildProcess:
    return cast(ChildProcess, object())


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
