"""Long work lets other requests run about every millisecond, whatever its steps cost."""

import asyncio
import time

import pytest

from server.requests import time_slices
from server.requests.time_slices import NUMBERS_A_STEP, TimeSlice, steps
from tests.server.loop_share import turns_during


def test_a_slice_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, num_pauses = 0.0, 0
    monkeypatch.setattr(time_slices, "SECONDS", 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def pause(seconds: float) -> None:
        nonlocal num_pauses
        num_pauses += 1

    monkeypatch.setattr(asyncio, "sleep", pause)

    async def work() -> None:
        nonlocal now
        time_slice = TimeSlice()
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
