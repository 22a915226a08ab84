"""A process that served is started again at once; one that never gets that far, slower each time, and then no more."""

from typing import cast

from server.crash_loop import CrashLoop
from server.member import Member


def a_member() -> Member:
    return cast(Member, object())


def test_a_process_that_served_is_started_at_once() -> None:
    crashes, member = CrashLoop(), a_member()

    for _ in range(100):
        crashes.succeeded(member)
        assert crashes.failed(member) == 0


def test_one_that_never_serves_waits_longer_each_time_and_is_given_up() -> None:
    crashes, member = CrashLoop(), a_member()

    delays = [crashes.failed(member) for _ in range(5)]

    assert delays[0] == 0
    waits = [delay for delay in delays if delay is not None]
    assert waits == sorted(set(waits))
    assert delays[-1] is None
    assert crashes.failed(member) is None


def test_serving_once_clears_the_count() -> None:
    crashes, member = CrashLoop(), a_member()
    while crashes.failed(member) is not None:
        pass

    crashes.succeeded(member)

    assert crashes.failed(member) == 0


def test_each_process_has_its_own_count() -> None:
    crashes, unlucky, other = CrashLoop(), a_member(), a_member()
    while crashes.failed(unlucky) is not None:
        pass

    assert crashes.failed(other) == 0
