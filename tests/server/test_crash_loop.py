"""A process that served is started again at once; one that never gets that far, slower each time."""

from typing import cast

from server.supervisor.child import Member
from server.supervisor.restarts import CrashLoop


def a_member() -> Member:
    return cast(Member, object())


def test_a_process_that_served_for_long_is_started_at_once() -> None:
    crashes, member = CrashLoop(), a_member()

    for life in range(10):
        crashes.succeeded(member, now=100.0 * life)
        assert crashes.failed(member, now=100.0 * life + 60) == 0
    assert not crashes.is_beyond_help(member)


def test_short_lives_in_a_row_are_slowed_down_but_never_given_up() -> None:
    crashes, member = CrashLoop(), a_member()

    delays = []
    for life in range(20):
        crashes.succeeded(member, now=10.0 * life)
        delays.append(crashes.failed(member, now=10.0 * life + 1))

    assert delays[0] == 0
    assert all(0 < delay <= 1 for delay in delays[1:])
    assert not crashes.is_beyond_help(member)


def test_one_that_never_serves_waits_longer_each_time_until_there_is_no_hope() -> None:
    crashes, member = CrashLoop(), a_member()

    delays, hopes = [], []
    for _ in range(6):
        delays.append(crashes.failed(member, now=0))
        hopes.append(not crashes.is_beyond_help(member))

    assert delays == [0.0, 0.5, 2.0, 5.0, 15.0, 15.0]
    assert hopes == [True, True, True, True, False, False]


def test_serving_once_clears_the_count() -> None:
    crashes, member = CrashLoop(), a_member()
    for _ in range(5):
        crashes.failed(member, now=0)
    assert not crashes.has_served(member)

    crashes.succeeded(member, now=1)

    assert crashes.has_served(member)
    assert not crashes.is_beyond_help(member)
    assert crashes.failed(member, now=100) == 0


def test_each_process_has_its_own_count() -> None:
    crashes, unlucky, other = CrashLoop(), a_member(), a_member()
    for _ in range(5):
        crashes.failed(unlucky, now=0)

    assert crashes.failed(other, now=0) == 0
    assert not crashes.is_beyond_help(other)
