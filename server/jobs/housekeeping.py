"""What falls due without anybody asking: requests that waited too long, and results whose time is over."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from server.jobs.store.errors import StoreError
from server.jobs.store.store import RequestStore, delay_until
from wire.metrics import Recorder

_RETRY_SECONDS = 5.0  # after the store failed
_LEAST_SECONDS = 0.05  # between two looks
_MOST_SECONDS = 15.0  # claims on a store that several servers share are renewed so often

logger = logging.getLogger("embedline.server")


class Housekeeping:
    """Sleeps until the store says that something is due."""

    def __init__(
        self,
        store: RequestStore,
        claimed_ids: Callable[[], Sequence[str]],
        *,
        metrics: Recorder,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when the numbers of the queue have changed."""
        self._store = store
        self._claimed_ids = claimed_ids
        self._metrics = metrics
        self._changed = changed

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._once()
                delay = delay_until(await self._store.next_due(), time.time(), longest=_MOST_SECONDS)
            except StoreError as error:
                logger.error("the store of --jobs can't be tidied: %s", error)
                delay = _RETRY_SECONDS
            await asyncio.sleep(max(delay, _LEAST_SECONDS))

    async def _once(self) -> None:
        if claimed := self._claimed_ids():
            await self._store.renew(claimed)
        if num_expired := await self._store.expire():
            self._metrics.count("embedline_jobs_total", "expired", by=num_expired)
            logger.warning("%d async request(s) expired: they waited longer than they may", num_expired)
            self._changed()
        if await self._store.purge():
            self._changed()
