"""Forgets batches that ended long ago. Their files stay until their owner removes them."""

import asyncio
import logging
from collections.abc import Callable

from server.jobs.batches.state import ENDED, KIND, state_of
from server.jobs.store.errors import StoreError
from server.jobs.store.store import DocumentStore

_LONGEST_SECONDS = 3600.0  # between two looks; less where the TTL is short
_PAGE = 500  # documents at a time

logger = logging.getLogger("embedline.jobs")


class Expiry:
    """`run` looks until it is cancelled."""

    def __init__(self, documents: DocumentStore, *, ttl: float, clock: Callable[[], float]) -> None:
        """ttl  seconds from the end of a batch"""
        self._documents = documents
        self._ttl = ttl
        self._clock = clock

    async def run(self) -> None:
        while True:
            try:
                if count := await self.forget():
                    logger.info("%d batch(es) are forgotten, as they ended %.0f s ago or more", count, self._ttl)
            except StoreError as error:
                logger.error("batches that ended long ago can't be forgotten: %s", error)
            await asyncio.sleep(max(1.0, min(_LONGEST_SECONDS, self._ttl / 10)))

    async def forget(self) -> int:
        """How many were due."""
        count, kept = 0, None
        while True:
            page = await self._documents.in_state(KIND, ENDED, after=kept, limit=_PAGE)
            for document in page:
                state = state_of(document)
                if state.times.get(f"{state.status}_at", state.expires_at) > self._clock() - self._ttl:
                    kept = document.document_id
                elif await self._documents.delete(document.owner, KIND, document.document_id):
                    count += 1
            if len(page) < _PAGE:
                return count
