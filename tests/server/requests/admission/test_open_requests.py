"""Places of those that are worked on: none for who waits for its client, and none that another key can take."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from server.requests.errors import Overloaded
from server.requests.limits import GAVE_WAY, OpenRequest, OpenRequests


@contextlib.contextmanager
def let_in(requests: OpenRequests, *keys: str) -> Iterator[list[OpenRequest]]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(OpenRequest(requests)) for _ in keys]
        for one, key in zip(made, keys, strict=True):
            one.let_in(key)
        yield made


def is_refused(requests: OpenRequests, key: str) -> bool:
    with OpenRequest(requests) as one:
        try:
            one.let_in(key)
        except Overloaded as error:
            return (error.reason, error.retry_after) == ("concurrency", 1.0)
        return False


def test_only_so_many_are_worked_on() -> None:
    requests = OpenRequests(2)
    with let_in(requests, "", ""):
        assert is_refused(requests, "")
    with let_in(requests, ""):
        with contextlib.suppress(KeyError), let_in(requests, ""):
            raise KeyError
        assert not is_refused(requests, "")
    assert requests.num_open == 0


@pytest.mark.holds("Every bound")
def test_a_key_below_its_part_is_let_in_when_all_places_are_taken() -> None:
    requests = OpenRequests(4)
    with let_in(requests, "a", "a", "a", "a"):
        assert is_refused(requests, "a")
        with let_in(requests, "b", "b"):
            assert is_refused(requests, "a")
            assert is_refused(requests, "b")
            assert not is_refused(requests, "c")  # one always


@pytest.mark.holds("Every bound")
def test_who_waits_for_its_client_takes_no_place_and_comes_back_to_its_own() -> None:
    requests = OpenRequests(1)
    with let_in(requests, "a") as (one,):
        with one.waiting():
            assert not is_refused(requests, "a")
        assert is_refused(requests, "a")
        one.end_work()
        assert not is_refused(requests, "a")
        assert requests.num_open == 1


@pytest.mark.holds("Every bound")
async def test_of_too_many_that_wait_for_bodies_the_one_that_has_waited_longest_gives_way() -> None:
    requests, ended = OpenRequests(2), list[str]()

    async def wait(name: str, key: str) -> None:
        clock = asyncio.timeout(60)
        try:
            async with clock:
                with OpenRequest(requests) as one:
                    one.let_in(key)
                    with one.waiting_for_body(clock):
                        await asyncio.Event().wait()
        except TimeoutError:
            assert clock.when() == GAVE_WAY
            ended.append(name)

    tasks = []
    for name, key in (("first", "a"), ("other", "b"), ("second", "a"), ("third", "a"), ("fourth", "a")):
        tasks.append(asyncio.create_task(wait(name, key)))
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert requests.num_open == 0
    assert ended == ["first", "second"]
