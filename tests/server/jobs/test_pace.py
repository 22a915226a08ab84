"""How many requests are sent at a time: fewer after a refusal, more after answers, never more than the most."""

import asyncio
from collections.abc import Awaitable, Callable

from server.jobs.pace import Pace


def run(test: Callable[[Pace], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Pace(4))

    asyncio.run(main())


async def taken(pace: Pace, number: int) -> list[asyncio.Task[None]]:
    """So many turns, each held until its task is cancelled."""
    held = asyncio.Semaphore(0)

    async def hold() -> None:
        async with pace.turn():
            held.release()
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold()) for _ in range(number)]
    for _ in tasks:
        await held.acquire()
    return tasks


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_no_more_turns_than_the_most() -> None:
    async def test(pace: Pace) -> None:
        tasks = await taken(pace, 4)
        assert pace.num_free == 0
        fifth = asyncio.create_task(taken(pace, 1))
        await asyncio.sleep(0)
        assert not fifth.done()
        await ended(tasks[:1])
        await ended([*tasks[1:], *await fifth])
        assert pace.num_free == 4

    run(test)


def test_a_turn_that_was_cancelled_while_it_waited_is_free() -> None:
    async def test(pace: Pace) -> None:
        tasks = await taken(pace, 4)

        async def wait() -> None:
            async with pace.turn():
                raise AssertionError

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await ended([waiting])
        await ended(tasks)
        await ended(await taken(pace, 4))

    run(test)


def test_a_refusal_halves_the_number_and_pauses() -> None:
    async def test(pace: Pace) -> None:
        pace.refused(0.02)
        pace.refused(0.01)  # it was sent together with the other
        assert pace.num_free == 0
        tasks = await taken(pace, 2)  # waits for the pause to end
        assert pace.num_free == 0
        await ended(tasks)
        for _ in range(20):
            pace.answered()
        assert pace.num_free == 4

    run(test)


def test_one_request_is_always_possible() -> None:
    async def test(pace: Pace) -> None:
        for _ in range(10):
            pace.refused(0.001)
            await ended(await taken(pace, 1))

    run(test)
