"""Work on a stream's messages, without gRPC: errors of reading, and what becomes of results that nobody takes."""

import asyncio

import pytest

from server.requests.limits import InOrder


async def work(number: int) -> int:
    return 10 * number


async def test_an_error_of_reading_comes_after_the_results() -> None:
    numbers = [1, 2]

    async def read() -> int:
        if not numbers:
            raise ValueError("no more")
        return numbers.pop(0)

    async with InOrder(read, work, max_open=9, dropped=lambda result: None) as results:
        assert [await results.next(), await results.next()] == [10, 20]
        with pytest.raises(ValueError, match="no more"):
            await results.next()


async def test_results_that_nobody_takes_are_handed_over_and_other_work_is_cancelled() -> None:
    numbers, dropped, cancelled = [1, 2, 3], list[int](), list[int]()

    async def read() -> int | None:
        return numbers.pop(0) if numbers else None

    async def slow_for_3(number: int) -> int:
        try:
            await (asyncio.Event().wait() if number == 3 else asyncio.sleep(0))
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    async with InOrder(read, slow_for_3, max_open=9, dropped=dropped.append) as results:
        assert await results.next() == 1
        for _ in range(5):
            await asyncio.sleep(0)
    assert (dropped, cancelled) == ([2], [3])
