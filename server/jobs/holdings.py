"""What each API key holds, for operators: shown, and removed where a key does not do it itself."""

import contextlib
import logging
from typing import Any

from server.jobs.batches.batches import Batches, BatchOpen, FileInUse
from server.jobs.files import Files
from server.jobs.messages import Call, Reply
from server.jobs.requests import asked
from server.jobs.service import Handler
from server.jobs.store.store import RequestStore

_PAGE = 500  # documents at a time

logger = logging.getLogger("embedline.jobs")


class Holdings:
    """No route of clients leads here: `embedline jobs` asks, by the socket that frontends have."""

    def __init__(self, requests: RequestStore, files: Files, batches: Batches) -> None:
        self._requests = requests
        self._files = files
        self._batches = batches

    def handlers(self) -> dict[str, Handler]:
        """The calls."""
        return {"holders": self._holders, "remove_held": self._remove}

    async def _holders(self, call: Call, _: memoryview) -> Reply:
        counts = await asked(self._requests.counts(None))
        return Reply({"held": await asked(self._requests.holders()), "quota_bytes": counts.quota_bytes})

    async def _remove(self, call: Call, _: memoryview) -> Reply:
        """What has ended of this owner: batches, files that no open batch needs, results whose webhooks are settled."""
        removed = {"batches": 0, "files": 0}
        for state in await self._all(self._batches, call.owner):
            with contextlib.suppress(BatchOpen):
                removed["batches"] += await asked(self._batches.delete(call.owner, state.id))
        for info in await self._all(self._files, call.owner):
            with contextlib.suppress(FileInUse):
                removed["files"] += await asked(self._batches.delete_file(call.owner, info.id))
        await asked(self._requests.end_ttl(call.owner))
        while await asked(self._requests.purge()):
            pass
        left = (await asked(self._requests.holders())).get(call.owner, 0)
        logger.warning("an operator has removed what the key %s held; %d bytes are left", call.owner or "(none)", left)
        return Reply({"removed": removed, "left": left})

    async def _all(self, source: Any, owner: str) -> list[Any]:
        found: list[Any] = []
        while True:
            after = found[-1].id if found else None
            page = await asked(source.newest(owner, after=after, limit=_PAGE))
            found += page
            if len(page) < _PAGE:
                return found
