"""Opens a store in Redis: refuses a server that would lose what was accepted, and warns where it might."""

import asyncio
import logging
import time
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from server.jobs.store.errors import StoreUnusable
from server.jobs.store.redis.connection import Connection, client_of
from server.jobs.store.redis.documents import RedisDocuments
from server.jobs.store.redis.requests import RedisRequests
from server.jobs.store.store import StoreLimits
from server.jobs.types import NUM_PRIORITIES

VERSION = 2
_UNCOUNTED = 1  # the version that did not count by owner
PREFIX = "{embedline:jobs}:"  # braces: one slot of a cluster
LEAST_REDIS = 7  # whose XAUTOCLAIM passes over entries that were removed

# Of a store of version 1, which did not count by owner. "" is an owner too, so the totals are counted anew.
COUNT = """
if call('GET', P .. 'version') ~= '1' then return end
call('DEL', P .. 'usage')
local function count(name, is_open)
  for _, id in ipairs(call('ZRANGE', P .. name, 0, -1)) do
    local r = call('HMGET', row(id), 'owner', 'size')
    use(r[1], r[2], is_open and r[2] or 0, is_open and 1 or 0)
  end
end
for _, name in ipairs({'expiring', 'running', 'outbox', 'purging'}) do
  count(name, name == 'expiring' or name == 'running')
end
for _, name in ipairs({'file:uploading', 'file:ready', 'batch:open', 'batch:ended'}) do
  for _, id in ipairs(call('ZRANGE', P .. 'stated:' .. name, 0, -1)) do
    local r = call('HMGET', P .. 'document:' .. string.match(name, '%a+') .. ':' .. id, 'owner', 'size')
    use(r[1], r[2], 0, 0)
  end
end
call('SET', P .. 'version', 2)
"""

logger = logging.getLogger("embedline.server")


class RedisStore:
    """A Store. Several servers may have it open."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.requests = RedisRequests(connection)
        self.documents = RedisDocuments(connection)

    async def close(self) -> None:
        await self._connection.close()


async def open_redis(
    url: str, limits: StoreLimits | None = None, clock: Callable[[], float] = time.time, folder_id: str | None = None
) -> RedisStore:
    """Open or make the store, else StoreUnusable. What other servers claimed stays theirs until their leases end.

    folder_id  of the folder with the files: all servers must share it
    """
    client = client_of(url)
    limits = limits or StoreLimits()
    connection = Connection(client, limits, prefix=PREFIX, clock=clock, folder_id=folder_id or "")
    try:
        await _check_server(client)
        await _make(client)
        if folder_id is not None:
            await _check_folder(client, folder_id)
        await connection.run(COUNT)
        await connection.shorten_waits()
    except BaseException as error:
        await connection.close()
        if isinstance(error, RedisError | OSError | asyncio.TimeoutError):
            raise StoreUnusable(f"--jobs-redis: Redis can't be used: {type(error).__name__}") from None
        raise
    return RedisStore(connection)


async def _check_server(client: Redis) -> None:
    version = str((await client.info("server"))["redis_version"])
    if int(version.partition(".")[0]) < LEAST_REDIS:
        raise StoreUnusable(f"--jobs-redis: this is Redis {version}; it takes {LEAST_REDIS} or later")
    try:
        known = {name: await _configured(client, name) for name in ("appendonly", "appendfsync", "maxmemory-policy")}
    except ResponseError:
        logger.warning("--jobs-redis: CONFIG GET is refused, so nobody has checked that Redis keeps what it accepted")
        return
    if known["maxmemory-policy"] != "noeviction":
        raise StoreUnusable("--jobs-redis: Redis would drop requests; set maxmemory-policy noeviction")
    if known["appendonly"] != "yes":
        raise StoreUnusable("--jobs-redis: Redis would lose requests when it ends; set appendonly yes")
    if known["appendfsync"] != "always":
        logger.warning(
            "--jobs-redis: appendfsync is %s: requests accepted just before Redis or its machine dies may be lost; "
            "set appendfsync always",
            known["appendfsync"],
        )


async def _configured(client: Redis, name: str) -> str:
    return str((await client.config_get(name))[name])


async def _make(client: Redis) -> None:
    """The version and the groups, where they are not there yet."""
    await client.set(f"{PREFIX}version", VERSION, nx=True)
    version = int(await client.get(f"{PREFIX}version") or VERSION)
    if version not in (_UNCOUNTED, VERSION):
        raise StoreUnusable(f"--jobs-redis: a store of version {version}; this server knows version {VERSION} alone")
    for priority in range(NUM_PRIORITIES):
        try:
            await client.xgroup_create(f"{PREFIX}queue:{priority}", "servers", id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


async def _check_folder(client: Redis, folder_id: str) -> None:
    await client.set(f"{PREFIX}folder", folder_id, nx=True)
    if (await client.get(f"{PREFIX}folder")) != folder_id.encode():
        raise StoreUnusable(
            "--jobs: the servers of this --jobs-redis keep their files in another folder; all of them must share one"
        )
