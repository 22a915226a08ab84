"""Room for rows and answers: waited for in order, given back by whoever leaves, and never refused to the only one."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.types import OutputKind
from server.requests.errors import NotReady
from server.requests.row_memory import HeldMemory, RowMemory
from server.requests.work import EmbedRequest, RequestContext, Work, bytes_to_hold
from tests.server.edge import DIMENSIONS, served_model

MAX_BYTES = 100
LONG = 60.0


class Asking:
    """Requests for room, and which of them have it, in the order in which they got it."""

    def __init__(self, max_wait: float, max_of_key: int | None = None) -> None:
        self.memory = RowMemory(MAX_BYTES, max_wait=max_wait, max_of_key=max_of_key)
        self.got: list[str] = []
        self.held: list[HeldMemory] = []

    async def ask(self, name: str, num_bytes: int, key: str = "") -> "asyncio.Task[None]":
        async def take() -> None:
            self.held.append(await self.memory.take(num_bytes, key))
            self.got.append(name)

        task = asyncio.create_task(take())
        await turns()
        return task

    async def release(self, num: int) -> None:
        """The first ones that hold room, so many, are done."""
        for held in self.held[:num]:
            held.release()
        del self.held[:num]
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(test: Callable[[Asking], Awaitable[None]], *, max_wait: float = LONG, max_of_key: int | None = None) -> None:
    async def main() -> None:
        asking = Asking(max_wait, max_of_key)
        await test(asking)
        assert asking.memory.num_held_bytes == 0
        assert not asking.memory._waiting

    asyncio.run(main())


def test_room_is_given_in_order_and_nobody_overtakes() -> None:
    async def test(asking: Asking) -> None:
        for name, num_bytes in (("a", 60), ("b", 40), ("c", 80), ("d", 10)):
            await asking.ask(name, num_bytes)
        assert asking.got == ["a", "b"]
        await asking.release(1)
        assert asking.got == ["a", "b"]
        await asking.release(1)
        assert asking.got == ["a", "b", "c", "d"]
        await asking.release(2)

    run(test)


def test_one_always_fits_and_only_one() -> None:
    async def test(asking: Asking) -> None:
        await asking.ask("a", 10 * MAX_BYTES)
        await asking.ask("b", 10 * MAX_BYTES)
        assert asking.got == ["a"]
        await asking.release(1)
        assert asking.got == ["a", "b"]
        await asking.release(1)

    run(test)


def test_who_leaves_makes_room_for_the_next() -> None:
    async def test(asking: Asking) -> None:
        await asking.ask("a", 60)
        waiting = await asking.ask("b", 80)
        await asking.ask("c", 40)
        waiting.cancel()
        await turns()
        assert asking.got == ["a", "c"]
        await asking.release(2)

    run(test)


@pytest.mark.parametrize("num_turns", range(4))
def test_who_leaves_as_it_gets_room_gives_it_back(num_turns: int) -> None:
    async def test(asking: Asking) -> None:
        await asking.ask("a", MAX_BYTES)
        leaving = await asking.ask("b", MAX_BYTES)
        asking.held[0].release()
        for _ in range(num_turns):
            await asyncio.sleep(0)
        leaving.cancel()
        await turns()
        await asking.release(2)  # of the second only if it had returned before

    run(test)


def test_whose_deadline_comes_while_it_waits_holds_nothing() -> None:
    async def test(asking: Asking) -> None:
        await asking.ask("a", MAX_BYTES)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asking.memory.take(MAX_BYTES)
        await asking.release(1)

    run(test)


def test_those_who_left_are_forgotten_while_nobody_gets_room() -> None:
    """However many come and leave while the room is full, nothing is kept of them."""

    async def test(asking: Asking) -> None:
        await asking.ask("a", MAX_BYTES)
        await asking.ask("b", MAX_BYTES)
        for task in [await asking.ask("c", 1) for _ in range(10)]:
            task.cancel()
        await turns()
        assert len(asking.memory._waiting) == 1
        await asking.release(1)
        await asking.release(1)

    run(test)


def test_an_answer_takes_the_place_of_its_rows_without_a_wait() -> None:
    """It is in memory already: it is counted past those who wait, or refused at once."""

    async def test(asking: Asking) -> None:
        for name, num_bytes in (("a", 50), ("b", 30), ("c", 40)):
            await asking.ask(name, num_bytes)
        first, second = asking.held
        first.change(70)
        with pytest.raises(NotReady) as error:
            second.change(31)
        assert (error.value.reason, asking.memory.num_held_bytes) == ("unread_answers", 100)
        second.release()
        first.change(10 * MAX_BYTES)  # nobody else holds anything
        first.change(60)
        await turns()
        assert asking.got == ["a", "b", "c"]
        await asking.release(3)

    run(test)


def test_who_waits_too_long_is_refused_and_makes_room() -> None:
    async def test(asking: Asking) -> None:
        await asking.ask("a", 60)
        refused = await asking.ask("b", 80)
        await asking.ask("c", 40)
        with pytest.raises(NotReady) as error:
            await refused
        assert (error.value.reason, error.value.retry_after) == ("unread_answers", 1.0)
        await turns()
        assert asking.got == ["a", "c"]
        await asking.release(2)

    run(test, max_wait=0)


@pytest.mark.parametrize(
    ("outputs", "encoding", "bytes_of_a_number"),
    [
        (OutputKind.POOLED, "float", 16),
        (OutputKind.POOLED, "base64", 10),
        (OutputKind.POOLED, "bytes", 8),
        (OutputKind.POOLED, "", 4),
        (OutputKind.POOLED | OutputKind.SPARSE, "float", 16),
        (OutputKind.TOKENS, "float", 48),
        (OutputKind.MULTI_VECTOR, "", 12),
        (OutputKind.LOGITS, "", 0),
    ],
)
def test_what_a_request_will_take(outputs: OutputKind, encoding: str, bytes_of_a_number: int) -> None:
    work = Work(model=served_model(), items=["a"] * 4096, outputs=outputs, context=RequestContext())
    expected = 4096 * DIMENSIONS * bytes_of_a_number
    assert bytes_to_hold(work, num_tokens=3 * 4096, encoding=encoding) == expected


def test_64_kib_of_rows_are_not_counted() -> None:
    most = 64 * 1024 // 4 // DIMENSIONS
    few, more = (Work(model=served_model(), items=["a"] * num, context=RequestContext()) for num in (most, most + 1))
    assert bytes_to_hold(few, num_tokens=0, encoding="float") == 0
    assert bytes_to_hold(more, num_tokens=0, encoding="float") > 0


def test_fewer_dimensions_make_smaller_answers_of_the_same_rows() -> None:
    work = EmbedRequest(model=served_model(), items=["a"] * 4096, dimensions=DIMENSIONS // 2, context=RequestContext())
    assert bytes_to_hold(work, num_tokens=0, encoding="float") == 4096 * DIMENSIONS * (4 + 12 // 2)


@pytest.mark.holds("Every bound")
def test_a_key_has_no_more_than_its_part_and_others_go_past_those_of_it_that_wait() -> None:
    async def test(asking: Asking) -> None:
        await asking.ask("a1", 1000, "a")  # the only one of its key always fits, and counts as its part
        await asking.ask("a2", 10, "a")
        await asking.ask("b1", 40, "b")
        assert asking.got == ["a1", "b1"]
        assert asking.memory.num_held_bytes == 90
        with pytest.raises(NotReady):
            HeldMemory(asking.memory, "a").change(1)
        await asking.release(1)
        assert asking.got == ["a1", "b1", "a2"]
        await asking.release(2)

    run(test, max_of_key=50)


@pytest.mark.holds("Every bound")
def test_keys_that_wait_have_turns() -> None:
    async def test(asking: Asking) -> None:
        await asking.ask("c", 50, "c")
        for name in ("a1", "a2", "a3", "b1", "b2"):
            await asking.ask(name, 50, name[0])
        assert asking.got == ["c", "a1"]
        for _ in range(5):
            await asking.release(1)
        assert asking.got == ["c", "a1", "b1", "a2", "b2", "a3"]
        await asking.release(1)

    run(test, max_of_key=50)
