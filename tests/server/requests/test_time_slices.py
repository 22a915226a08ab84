"""Long work lets other requests run about every millisecond, whatever its steps cost."""

import asyncio
import time

import pytest

from server.requests import limits
from server.requests.limits import NUMBERS_A_STEP, SharedSlice, TimeSlice, steps
from tests.server.loop_share import turns_during


@pytest.mark.parametrize("kind", [TimeSlice, SharedSlice])
def test_a_slice_ends_when_its_time_is_over(
    kind: type[TimeSlice | SharedSlice], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, num_pauses = 5.0, 0
    monkeypatch.setattr(limits, "SLICE_SECONDS", 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def pause(seconds: float) -> None:
        nonlocal num_pauses
        num_pauses += 1

    monkeypatch.setattr(asyncio, "sleep", pause)

    async def work() -> None:
        nonlocal now
        time_slice = kind()
        for _ in range(80):
            now += 0.125
            await time_slice.end_if_over()

    asyncio.run(work())
    assert num_pauses == 10


@pytest.mark.parametrize(
    ("num_rows", "width", "lengths"),
    [
        (0, 4, []),
        (1, 4, [1]),
        (3, 2 * NUMBERS_A_STEP, [1, 1, 1]),
        (5, NUMBERS_A_STEP // 2, [2, 2, 1]),
        (5, 0, [5]),
    ],
)
def test_steps_cover_all_rows_once(num_rows: int, width: int, lengths: list[int]) -> None:
    found: list[slice] = []

    async def collect() -> None:
        found.extend([part async for part in steps(num_rows, width)])

    assert turns_during(collect()) == max(0, len(lengths) - 1)
    assert [part.stop - part.start for part in found] == lengths
    assert [row for part in found for row in range(num_rows)[part]] == list(range(num_rows))


async def test_pieces_of_work_that_share_a_slice_have_it_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are, others wait for one slice at a time."""
    shared, had = SharedSlice(), list[int]()
    monkeypatch.setattr(limits, "SLICE_SECONDS", -1.0)

    async def work(number: int) -> None:
        for _ in range(4):
            await shared.end_if_over()
            had.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(5)]
    in_a_turn = list[int]()
    while not all(task.done() for task in tasks):
        before = len(had)
        await asyncio.sleep(0)
        in_a_turn.append(len(had) - before)
    assert max(in_a_turn) == 1
    assert had == list(range(5)) * 4
