"""A place for a store, of each kind."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis import Redis

from server.features.jobs.store.redis import open_redis
from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import Store, StoreLimits
from tests.server.jobs.store.redis_server import redis_server
from tests.server.jobs.store.stores import Clock, Stores


@pytest_asyncio.fixture
async def sqlite_stores(tmp_path: Path) -> AsyncIterator[Stores]:
    async def open_one(limits: StoreLimits, clock: Clock) -> Store:
        return await open_sqlite(tmp_path / "jobs", limits, clock)

    stores = Stores(open_one)
    yield stores
    await stores.close()


@pytest.fixture(scope="session")
def _one_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis_url(_one_redis: str) -> str:
    """A Redis with nothing in it."""
    with Redis.from_url(_one_redis) as client:
        client.flushall()
    return _one_redis


@pytest_asyncio.fixture
async def redis_stores(redis_url: str) -> AsyncIterator[Stores]:
    async def open_one(limits: StoreLimits, clock: Clock) -> Store:
        return await open_redis(redis_url, limits, clock)

    stores = Stores(open_one)
    yield stores
    await stores.close()


@pytest.fixture(params=["sqlite", "redis"])
def stores(request: pytest.FixtureRequest) -> Stores:
    made: Stores = request.getfixturevalue(f"{request.param}_stores")
    return made


@pytest_asyncio.fixture
async def store(stores: Stores) -> Store:
    return await stores.open()
