"""Does long work on the event loop in slices of about a millisecond, so that other requests run in between."""

import asyncio
import time
from collections.abc import AsyncIterator

SECONDS = 0.001  # of a slice
# One step of a numpy loop handles so many: as JSON these are 0.7 ms, and nothing else that is done with them takes
# longer.
NUMBERS_A_STEP = 1 << 14


class TimeSlice:
    """The time that a piece of work may still hold the event loop."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = time.perf_counter() + SECONDS

    async def end_if_over(self) -> None:
        """Let other requests run if the slice is over, and begin the next one."""
        if time.perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._ends = time.perf_counter() + SECONDS


class SharedSlice:
    """The time that several pieces of work together may still hold the event loop. Each gets its slice in turn.

    Were each given a slice of its own, fifty of them would hold the loop fifty times as long.
    """

    __slots__ = ("_ends", "_turn")

    def __init__(self) -> None:
        self._ends = 0.0
        self._turn = asyncio.Lock()  # who came first is first

    async def end_if_over(self) -> None:
        """Does as TimeSlice's method; other pieces of this work have their turn first."""
        if time.perf_counter() >= self._ends:
            async with self._turn:
                await asyncio.sleep(0)
                self._ends = time.perf_counter() + SECONDS


async def steps(num_rows: int, numbers_a_row: int) -> AsyncIterator[slice]:
    """The rows in steps of about NUMBERS_A_STEP numbers, each of at least one row."""
    step = max(1, NUMBERS_A_STEP // max(1, numbers_a_row))
    if num_rows <= step:
        if num_rows:
            yield slice(0, num_rows)
        return
    time_slice = TimeSlice()
    for start in range(0, num_rows, step):
        if start:
            await time_slice.end_if_over()
        yield slice(start, min(start + step, num_rows))
