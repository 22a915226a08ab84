"""A backfill that waits for a place in a Ray cluster says so, and ends where there is none."""

import pytest

from server.features.backfill.errors import BackfillError
from server.features.ray.backfill import PlaceWait


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def of(clock: Clock) -> PlaceWait:
    return PlaceWait("8 CPUs and 0 GPUs", 150.0, lambda: "2 of 4 CPUs are free", clock)


def test_what_is_waited_for_is_said_once_a_minute_and_ends_in_an_error(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    room = of(clock)
    for _ in range(150):
        clock.now += 1.0
        room.check(lambda: False)
    said = "waiting for room for a worker in the Ray cluster: one needs 8 CPUs and 0 GPUs, and 2 of 4 CPUs are free"
    assert capsys.readouterr().err == 2 * f"embedline: {said}\n"
    clock.now += 1.0
    with pytest.raises(BackfillError, match="has no room for one in 150 s: one needs 8 CPUs"):
        room.check(lambda: False)


def test_a_worker_that_computes_may_take_its_time_and_one_that_lost_its_place_may_not(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    room = of(clock)
    for _ in range(10):
        clock.now += 100.0
        room.check(lambda: True)
    clock.now += 61.0
    room.check(lambda: False)
    assert capsys.readouterr().err.count("waiting for room") == 1
    clock.now += 100.0
    with pytest.raises(BackfillError, match="no room"):
        room.check(lambda: False)
