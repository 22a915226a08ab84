"""How many requests are sent at a time: fewer after a refusal, more after answers, never more than the most."""

import asyncio

import pytest
import pytest_asyncio

from server.features.jobs.pace import Pace, Postponed, SendQueue


@pytest_asyncio.fixture
async def pace() -> Pace:
    return Pace(4)


def later(seconds: float) -> None:
    """Move the clock of this test's loop on."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


async def taken(pace: Pace, number: int, owner: str = "", *, refused: float | None = None) -> list[asyncio.Task[None]]:
    """So many turns, each held until its task is cancelled. `refused` is what the server says at once."""
    held = asyncio.Semaphore(0)
    queue = SendQueue(owner)

    async def hold() -> None:
        async with pace.turn(queue):
            held.release()
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(hold()) for _ in range(number)]
    for _ in tasks:
        await held.acquire()
    for _ in tasks if refused is not None else ():
        pace.refused(owner, refused or 0.0)
    return tasks


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_no_more_turns_than_the_most(pace: Pace) -> None:
    tasks = await taken(pace, 4)
    assert pace.num_free == 0
    fifth = asyncio.create_task(taken(pace, 1))
    await asyncio.sleep(0)
    assert not fifth.done()
    await ended(tasks[:1])
    await ended([*tasks[1:], *await fifth])
    assert pace.num_free == 4


async def test_a_turn_that_was_cancelled_while_it_waited_is_free(pace: Pace) -> None:
    tasks = await taken(pace, 4)

    async def wait() -> None:
        async with pace.turn(SendQueue("")):
            raise AssertionError

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    await ended([waiting])
    await ended(tasks)
    await ended(await taken(pace, 4))


async def test_a_refusal_halves_the_number_and_pauses(pace: Pace) -> None:
    await ended(await taken(pace, 4, refused=30.0))  # they were sent together, so it is halved once
    assert (pace.is_paused(""), pace.limit("")) == (True, 2)
    waiting = asyncio.create_task(taken(pace, 2))
    await asyncio.sleep(0)
    assert pace.is_paused("")
    later(30.0)
    tasks = await waiting
    third = asyncio.create_task(taken(pace, 1))
    await asyncio.sleep(0.001)
    assert not third.done()
    for _ in range(20):
        pace.answered("")
    assert pace.limit("") == 4
    await ended(tasks[:1])
    await ended([*tasks[1:], *await third])


async def test_a_pause_has_a_bound(pace: Pace) -> None:
    await ended(await taken(pace, 1, refused=3600.0))
    later(29.0)
    assert pace.is_paused("")
    later(1.0)
    assert not pace.is_paused("")


async def test_one_request_is_always_possible(pace: Pace) -> None:
    for _ in range(10):
        await ended(await taken(pace, 1, refused=0.001))


@pytest.mark.holds("Fair shares")
async def test_a_pause_is_its_owners_alone(pace: Pace) -> None:
    await ended(await taken(pace, 4, "greedy", refused=30.0))
    waiting = [asyncio.create_task(taken(pace, 1, "greedy")) for _ in range(8)]
    await asyncio.sleep(0)
    assert pace.num_free == 4
    tasks = await taken(pace, 4, "other")
    await ended(tasks)
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert pace.owners == ["greedy"]  # as long as it is paused


@pytest.mark.holds("Fair shares")
async def test_the_next_turn_is_the_owners_with_the_fewest(pace: Pace) -> None:
    order: list[str] = []

    async def ask(queue: SendQueue, name: str) -> None:
        async with pace.turn(queue):
            order.append(name)
            await asyncio.sleep(0)

    tasks = await taken(pace, 4, "first")
    queues = {name: SendQueue(name[0]) for name in ("a batch", "a request", "b batch")}
    names = ["a batch"] * 3 + ["a request"] * 2 + ["b batch"] * 2
    asked = [asyncio.create_task(ask(queues[name], name)) for name in names]
    await asyncio.sleep(0)
    for task in tasks[:1]:
        await ended([task])
    await asyncio.gather(*asked)
    owners_turns = ["a batch", "b batch", "a request", "b batch", "a batch", "a request", "a batch"]
    assert order == owners_turns
    await ended(tasks[1:])


async def test_what_waits_in_a_queue_that_closes_is_postponed(pace: Pace) -> None:
    tasks, queue = await taken(pace, 4), SendQueue("")

    async def ask(has_begun: bool) -> str:
        try:
            async with pace.turn(queue, has_begun=has_begun):
                return "sent"
        except Postponed:
            return "postponed"

    waiting = [asyncio.create_task(ask(has_begun)) for has_begun in (False, True)]
    await asyncio.sleep(0)
    queue.close()
    assert await waiting[0] == await ask(False) == "postponed"
    assert not waiting[1].done()
    await ended(tasks)
    assert await waiting[1] == await ask(True) == "sent"
    await ended(await taken(pace, 1, refused=30.0))
    assert await ask(True) == "postponed"
