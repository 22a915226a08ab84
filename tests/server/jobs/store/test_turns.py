"""Owners take turns at what a store gives, whichever store it is: a long queue of one delays nobody else's."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from server.features.jobs.store.redis import PREFIX
from server.features.jobs.store.sqlite import FILE, open_sqlite
from server.features.jobs.store.store import Store, Turns
from server.features.jobs.types import Claimed, Delivery
from tests.server.jobs.store.stores import SUCCESS, Stores, request


def owners(found: Sequence[Claimed | Delivery]) -> str:
    return "".join(one.owner for one in found)


async def added(stores: Stores, given: str, **changes: Any) -> None:
    """A request of each of these owners, one after another."""
    for owner in given:
        stores.clock.now += 0.001
        await stores.opened[0].requests.add(request(owner=owner, **changes))


@pytest.mark.holds("Fair shares")
async def test_owners_are_claimed_in_turn(stores: Stores, store: Store) -> None:
    await added(stores, "aaaaaabbc")
    assert owners(await store.requests.claim(5)) == "abcab"
    assert owners(await store.requests.claim(5)) == "aaaa"


async def test_who_has_least_goes_first_and_of_equals_who_waited_longest(stores: Stores, store: Store) -> None:
    await added(stores, "aaabbbccd")
    assert owners(await store.requests.claim(6, Turns({"a": 3, "c": 1, "b": 1}))) == "dcbcba"


async def test_who_may_get_no_more_gets_no_turn_and_keeps_its_place(stores: Stores, store: Store) -> None:
    await added(stores, "aabb")
    assert owners(await store.requests.claim(4, Turns(left={"a": 0}))) == "bb"
    assert await store.requests.claim(4, Turns(left={"a": 0, "b": 0, "never seen": 0})) == []
    assert owners(await store.requests.claim(4, Turns(left={"a": 1}))) == "a"
    assert owners(await store.requests.claim(4)) == "a"


async def test_a_priority_orders_its_own_owners_requests_alone(stores: Stores, store: Store) -> None:
    await added(stores, "b", priority=2)
    await added(stores, "aaa", priority=0)
    await added(stores, "b", priority=1)
    claimed = await store.requests.claim(4)
    assert [(one.owner, one.priority) for one in claimed] == [("a", 0), ("b", 1), ("a", 0), ("b", 2)]


async def test_an_owner_whose_requests_have_all_expired_takes_nobodys_turn(stores: Stores, store: Store) -> None:
    await added(stores, "a" * 5, max_time_in_queue=10)
    await added(stores, "b", max_time_in_queue=100)
    stores.clock.now += 11
    assert owners(await store.requests.claim(1)) == "b"


async def test_webhooks_that_are_due_take_turns_too(stores: Stores, store: Store) -> None:
    await added(stores, "aaaaaabbc", webhook_endpoint="https://example.com/")
    for one in await store.requests.claim(9):
        stores.clock.now += 0.001
        await store.requests.finish(one.request_id, SUCCESS)
    await store.requests.due_webhooks(1, Turns(left={"b": 0, "c": 0}))
    assert owners(await store.requests.due_webhooks(4, Turns({"a": 1}))) == "bcab"
    assert owners(await store.requests.due_webhooks(9, Turns(left={"b": 0}))) == "aaaa"
    assert await store.requests.due_webhooks(9) == []


async def test_a_store_of_an_earlier_server_is_claimed_in_turn(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "store")
    for owner in "aaab":
        await store.requests.add(request(owner=owner))
    await store.close()
    with sqlite3.connect(tmp_path / "store" / FILE) as kept:
        kept.executescript(
            "DROP INDEX turns; DROP INDEX due;CREATE INDEX queued ON requests (priority, seq) WHERE status = 'QUEUED'"
        )
    kept.close()
    store = await open_sqlite(tmp_path / "store")
    assert owners(await store.requests.claim(2)) == "ab"
    await store.close()


async def test_requests_that_an_earlier_server_has_added_to_redis_are_claimed(
    redis_stores: Stores, redis_url: str
) -> None:
    store = await redis_stores.open()
    await added(redis_stores, "aab", webhook_endpoint="https://example.com/")
    async with Redis.from_url(redis_url) as client:
        await client.delete(f"{PREFIX}owners:waiting")
        claimed = await store.requests.claim(9) + await store.requests.claim(9)
        assert sorted(owners(claimed)) == ["a", "a", "b"]
        for one in claimed:
            await store.requests.finish(one.request_id, SUCCESS)
        await client.delete(f"{PREFIX}owners:outbox")
    found = [await store.requests.due_webhooks(9) for _ in range(2)]
    assert sorted(owners([*found[0], *found[1]])) == ["a", "a", "b"]
