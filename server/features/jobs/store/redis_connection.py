"""The connections to Redis: scripts with what each of them gets, and errors as a store's."""

from collections.abc import Callable
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from server.features.jobs.store.quotas import EXPIRED_MESSAGE, size_of_end
from server.features.jobs.store.redis_scripts import PRELUDE, SHORTEN
from server.features.jobs.store.store import StoreFull, StoreLimits, StoreUnavailable, StoreUnusable, errors_text
from server.features.jobs.types import Finished, JobError, Status

BACKWARDS_SECONDS = 1.0  # a clock that goes back by less is being trimmed, not set
MAX_CONNECTIONS = 32
PLACE_SECONDS = 10.0  # to wait for one of them
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
EXPIRY = Finished(Status.EXPIRED, errors=(JobError("EXPIRED", EXPIRED_MESSAGE),))
TIMED = ("expiring", "running", "purging", "outbox")
IDS_AT_ONCE = 500


def client_of(url: str) -> Redis:
    """Connects when it is used. A command whose answer was lost is not sent again. Raises StoreUnusable."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=PLACE_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except (ValueError, TypeError):  # its words may repeat the password
        raise StoreUnusable("--jobs-redis: that is not a URL that redis-py knows") from None
    return Redis.from_pool(pool)


def limits_text(limits: StoreLimits) -> str:
    """As scripts take the quota, and the share of each owner with a name."""
    return f"{limits.quota_bytes} {limits.key_share!r}"


class Connection:
    """Calls raise StoreFull where Redis has no memory left, and StoreUnavailable."""

    def __init__(
        self, client: Redis, limits: StoreLimits, *, prefix: str, clock: Callable[[], float], folder_id: str = ""
    ) -> None:
        """folder_id  of the folder with the files; no other server may use another one with this Redis"""
        self.limits = limits
        self.clock = clock
        self.prefix = prefix
        self._client = client
        self._folder_key = f"{prefix}folder:{folder_id}"
        self._scripts: dict[str, Any] = {}
        self._last_now = float("-inf")
        self._is_closed = False

    async def run(self, script: str, *arguments: bytes | str | float) -> Any:
        """What the script returns; `arguments` are its own."""
        now = self.clock()
        if now < self._last_now - BACKWARDS_SECONDS:
            await self.shorten_waits()
        self._last_now = now
        return await self._run(script, now, *arguments)

    async def read(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The answers to commands sent together; not by MULTI, which Redis refuses when it has no memory left."""

        async def ask() -> Any:
            async with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return await pipeline.execute()

        answers: list[Any] = await self._guarded(ask())
        return answers

    async def shorten_waits(self) -> None:
        """After the clock went back, no wait is longer than its whole length from now."""
        now = self._last_now = self.clock()
        for name in TIMED:
            cursor = 0
            while True:
                ask = self._client.zscan(self.prefix + name, cursor, count=IDS_AT_ONCE)
                cursor, found = await self._guarded(ask)
                if found:
                    await self._run(SHORTEN, now, name, *(member for member, _ in found))
                if not cursor:
                    break

    async def close(self) -> None:
        self._is_closed = True
        await self._client.aclose()

    async def _run(self, script: str, now: float, *arguments: bytes | str | float) -> Any:
        known = self._scripts.get(script)
        if known is None:
            known = self._scripts[script] = self._client.register_script(PRELUDE + script)
        common = (repr(now), repr(self.limits.result_ttl), errors_text(EXPIRY.errors), size_of_end(EXPIRY))
        return await self._guarded(known(keys=[self.prefix, self._folder_key], args=[*common, *arguments]))

    async def _guarded(self, asked: Any) -> Any:
        if self._is_closed:
            asked.close()
            raise StoreUnavailable("the store of jobs is closed")
        try:
            return await asked
        except OutOfMemoryError as error:
            raise StoreFull("Redis has no memory left") from error
        except ResponseError as error:
            if "ANOTHERFOLDER" not in str(error):
                raise StoreUnavailable(f"Redis does not do it: {type(error).__name__}") from error
            message = "servers with another folder of --jobs have taken this Redis since it was emptied"
            raise StoreUnavailable(message) from error
        except (TimeoutError, RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis does not do it: {type(error).__name__}") from error
