"""What only the store in Redis has: several servers on one queue, leases, a Redis that keeps nothing."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from server.features.jobs.store.redis import PREFIX, open_redis
from server.features.jobs.store.store import StoreFull, StoreLimits, StoreUnavailable, StoreUnusable
from server.features.jobs.types import Finished, Status
from tests.server.jobs.store.redis_server import redis_server
from tests.server.jobs.store.stores import ANSWER, SUCCESS, Stores, ended, file, request


@pytest_asyncio.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as client:
        yield client


async def let_leases_end(url: str) -> None:
    """Of all claims that there are now."""
    async with Redis.from_url(url) as client:
        for priority in range(3):
            queue = f"{PREFIX}queue:{priority}"
            for entry in await client.xpending_range(queue, "servers", "-", "+", 100):
                await client.xclaim(queue, "servers", "one", 0, [entry["message_id"]], idle=60_000, justid=True)


async def test_servers_share_a_queue(redis_stores: Stores) -> None:
    first, second = await redis_stores.open(), await redis_stores.open()
    ids = [await first.requests.add(request(number)) for number in range(3)]
    claimed = await second.requests.claim(2) + await first.requests.claim(10) + await second.requests.claim(10)
    assert [one.request_id for one in claimed] == ids
    assert await second.requests.finish(ids[0], SUCCESS)
    assert not await first.requests.finish(ids[0], Finished(Status.FAILED))
    assert await first.requests.result("anna", ids[0]) == ANSWER


async def test_a_server_that_is_started_takes_nothing_from_others(redis_stores: Stores) -> None:
    first = await redis_stores.open()
    await first.requests.add(request())
    await first.requests.claim(1)
    second = await redis_stores.open()
    assert await second.requests.claim(1) == []


@pytest.mark.holds("An accepted async request ends exactly once")
async def test_what_a_dead_server_claimed_is_taken_over(redis_stores: Stores, redis_url: str) -> None:
    dead, other = await redis_stores.open(), await redis_stores.open()
    ids = [await dead.requests.add(request(priority=priority)) for priority in (1, 0)]
    await dead.requests.claim(2)
    await let_leases_end(redis_url)
    claimed = await other.requests.claim(10)
    assert [(one.request_id, one.num_claims) for one in claimed] == [(ids[1], 2), (ids[0], 2)]
    await dead.requests.release(ids)  # they are not its any more
    assert await dead.requests.claim(10) == []
    assert (await dead.requests.counts(None)).in_progress == 2


async def test_what_is_renewed_is_not_taken_over(redis_stores: Stores, redis_url: str) -> None:
    first, second = await redis_stores.open(), await redis_stores.open()
    kept, lost = [await first.requests.add(request(number)) for number in range(2)]
    await first.requests.claim(2)
    await let_leases_end(redis_url)
    await second.requests.renew([lost])  # not its own
    await first.requests.renew([kept])
    assert [one.request_id for one in await second.requests.claim(10)] == [lost]


async def test_a_claim_that_would_be_too_large_leaves_the_rest(
    redis_stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.features.jobs.store.redis.MAX_BYTES_AT_ONCE", 5000)
    store = await redis_stores.open()
    ids = [await store.requests.add(request(body=b"x" * 2000)) for _ in range(3)]
    assert [[one.request_id for one in await store.requests.claim(10)] for _ in ids] == [[one] for one in ids]
    assert (await store.requests.counts(None)).in_progress == 3


async def test_what_ended_leaves_nothing_behind(redis_stores: Stores, redis: Redis) -> None:
    store = await redis_stores.open(StoreLimits(result_ttl=10))
    await ended(store, idempotency_key="key")
    redis_stores.clock.now += 10
    assert await store.requests.purge() == 1
    keys = [f"{PREFIX}{name}".encode() for name in ("queue:0", "queue:1", "queue:2", "usage", "version")]
    assert sorted(await redis.keys()) == keys
    assert await redis.xlen(f"{PREFIX}queue:0") == 0


async def test_a_redis_without_memory_refuses_and_changes_nothing(redis_stores: Stores, redis: Redis) -> None:
    store = await redis_stores.open()
    request_id = await store.requests.add(request())
    await store.requests.claim(1)
    before = await store.requests.counts(None)
    await redis.config_set("maxmemory", 1)
    with pytest.raises(StoreFull):
        await store.requests.add(request(1))
    with pytest.raises(StoreFull):
        await store.requests.finish(request_id, SUCCESS)
    assert await store.requests.counts(None) == before
    await redis.config_set("maxmemory", 0)
    assert await store.requests.finish(request_id, SUCCESS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"appendonly": "no"}, "set appendonly yes"),
        ({"maxmemory_policy": "allkeys-lru"}, "noeviction"),
    ],
    ids=str,
)
async def test_a_redis_that_loses_requests_is_refused(settings: dict[str, str], words: str, tmp_path: Path) -> None:
    with redis_server(tmp_path, **settings) as url, pytest.raises(StoreUnusable, match=words):
        await open_redis(url)


async def test_a_redis_that_may_lose_the_last_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server(tmp_path, appendfsync="everysec") as url, caplog.at_level(logging.WARNING):
        await (await open_redis(url)).close()
    assert "appendfsync is everysec" in caplog.text


async def test_all_is_there_after_redis_was_killed(tmp_path: Path) -> None:
    with redis_server(tmp_path) as url:
        store = await open_redis(url)
        request_id = await store.requests.add(request())
    with pytest.raises(StoreUnavailable):
        await store.requests.counts(None)
    await store.close()
    with redis_server(tmp_path) as url:
        store = await open_redis(url)
        assert [one.request_id for one in await store.requests.claim(10)] == [request_id]
        await store.close()


@pytest.mark.parametrize("is_looked_at", [False, True], ids=["then added to", "then looked at"])
async def test_a_redis_that_was_emptied_takes_requests_again(
    redis_stores: Stores, redis: Redis, *, is_looked_at: bool
) -> None:
    store = await redis_stores.open()
    await redis.flushall()
    if is_looked_at:
        assert await store.requests.claim(10) == []
    request_id = await store.requests.add(request())
    assert [one.request_id for one in await store.requests.claim(10)] == [request_id]


async def test_another_version_is_refused_by_name(redis_url: str, redis: Redis) -> None:
    await redis.set(f"{PREFIX}version", 7)
    with pytest.raises(StoreUnusable, match="version 7"):
        await open_redis(redis_url)


@pytest.mark.parametrize("url", ["redis://:hunter2@localhost:port", "unix://:hunter2@/nowhere/redis.sock"])
async def test_a_password_is_not_told(url: str) -> None:
    with pytest.raises(StoreUnusable) as refused:
        await open_redis(url)
    assert "hunter2" not in str(refused.value)


async def test_another_folder_of_files_is_refused(redis_url: str) -> None:
    for _ in range(2):
        await (await open_redis(redis_url, folder_id="one")).close()
    with pytest.raises(StoreUnusable, match="--jobs: the servers of this --jobs-redis keep their files in another"):
        await open_redis(redis_url, folder_id="two")


async def test_an_emptied_redis_still_belongs_to_the_folder(
    redis_url: str, redis: Redis, redis_stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_redis(redis_url, folder_id="ours")
    await store.requests.add(request())
    await store.requests.counts(None)
    await redis.flushall()
    await store.requests.add(request())
    with pytest.raises(StoreUnusable, match="keep their files in another folder"):
        await open_redis(redis_url, folder_id="theirs")
    await store.requests.counts(None)
    await store.requests.counts(None)
    assert caplog.text.count("Redis has been emptied") == 1
    await store.close()


async def test_of_two_folders_one_has_a_redis_that_was_emptied(redis_url: str, redis: Redis) -> None:
    store = await open_redis(redis_url, folder_id="ours")
    await redis.flushall()
    other = await open_redis(redis_url, folder_id="theirs")
    with pytest.raises(StoreUnavailable, match="another folder"):
        await store.requests.add(request())
    await other.requests.add(request())
    await store.close()
    await other.close()


async def test_a_store_of_an_earlier_version_is_counted_by_owner(redis: Redis, redis_stores: Stores) -> None:
    limits = StoreLimits(quota_bytes=100 << 10, key_share=0.5)
    store = await redis_stores.open(limits)
    ids = [await store.requests.add(request(number)) for number in range(3)]
    await store.requests.claim(2)
    await store.requests.finish(ids[0], SUCCESS)
    await store.documents.put(file(40 << 10))
    usage = await redis.hgetall(f"{PREFIX}usage")
    await redis.set(f"{PREFIX}version", 1)
    await redis.hdel(f"{PREFIX}usage", *(name for name in usage if b":" in name))
    await redis_stores.reopen(limits)
    counted = await redis.hgetall(f"{PREFIX}usage")
    assert counted == {name: value for name, value in usage.items() if "usual" not in repr(name)}
