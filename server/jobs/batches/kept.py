"""The kept state of a batch that runs here: changed by this process alone, but for a client's cancel.

Servers that share a store claim a batch for a time, and each change claims it anew. A server that stood still for
longer finds another claim at its next change. What it wrote meanwhile counts for nothing: each claim has outputs of
its own.
"""

import asyncio
import dataclasses
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from server.jobs.batches.state import KIND, BatchState, state_of
from server.jobs.store.errors import StoreFull
from server.jobs.store.store import BLOCK_BYTES, DocumentStore
from server.jobs.types import Document

_FILES_BYTES = 3 * BLOCK_BYTES  # for two files beside their bytes: what is known of them, and their last blocks
AHEAD_BYTES = 4 << 20  # reserved beside what is needed, so that not each commit has to

Saved = Callable[[BatchState, BatchState], None]  # called after each change, with what was before and what is now


class ClaimLost(Exception):
    """Another server runs the batch now, or the store has lost the last changes: a new claim goes on from there."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A server that shares batches with others, from one start to the next."""

    name: str
    lease: float  # seconds that a claim lasts

    def may_claim(self, state: BatchState, now: float) -> bool:
        """Whether nobody else has it. A claim that ends too late is from before the clock went back."""
        is_held = now < state.held_until <= now + 2 * self.lease
        return state.holder in ("", self.name) or not is_held

    async def claim(self, document: Document, documents: DocumentStore, now: float) -> Document | None:
        """As it is kept then; None if another server was quicker."""
        claim = {"holder": self.name, "held_until": now + self.lease, "claim": uuid.uuid4().hex}
        state = msgspec.structs.replace(state_of(document), **claim)
        claimed = state.document(document.owner, document.version)
        if not await documents.replace(claimed):
            return None
        return dataclasses.replace(claimed, version=claimed.version + 1)


class KeptBatch:
    """Raises ClaimLost, and what the store raises.

    holder     None = no other server has this store
    cancelled  called when a client has cancelled the batch, and when the claim is lost
    """

    def __init__(
        self,
        document: Document,
        documents: DocumentStore,
        *,
        holder: Holder | None,
        saved: Saved,
        cancelled: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.owner = document.owner
        self.state = state_of(document)
        self._version = document.version
        self._documents = documents
        self._holder = holder
        self._saved = saved
        self._cancelled = cancelled
        self._clock = clock
        self._changing = asyncio.Lock()

    @property
    def is_shared(self) -> bool:
        """Whether another server could go on with it."""
        return self._holder is not None

    @property
    def lease(self) -> float:
        """Seconds that a claim lasts."""
        return self._holder.lease if self._holder is not None else math.inf

    async def change(self, changed: Callable[[BatchState], BatchState]) -> None:
        """Durable when it returns. `changed` may be called again, with a state that was cancelled meanwhile."""
        async with self._changing:
            while True:
                state = changed(self.state)
                if self._holder is not None:
                    state = msgspec.structs.replace(state, held_until=self._clock() + self._holder.lease)
                elif state is self.state:
                    return
                if await self._documents.replace(state.document(self.owner, self._version)):
                    return self._became(state, self._version + 1)
                await self._read()

    async def reserve(self, num_bytes: int) -> None:
        """Find room for outputs of so many bytes before they are written. StoreFull where there is none."""
        num_bytes += _FILES_BYTES
        if num_bytes <= self.state.reserved_bytes:
            return
        for size in (num_bytes + AHEAD_BYTES, num_bytes):
            try:
                return await self.change(lambda state, size=size: msgspec.structs.replace(state, reserved_bytes=size))  # type: ignore[misc]
            except StoreFull:
                if size == num_bytes:
                    raise

    async def look(self, document: Document) -> None:
        """Given what the store has now: notice a cancel, and claim the batch anew in good time."""
        if document.version > self._version:
            async with self._changing:
                await self._read()
        elif self._holder and self._clock() > self.state.held_until - self._holder.lease * 2 / 3:
            await self.keep()

    async def keep(self) -> None:
        """Claim it anew."""
        await self.change(lambda state: state)

    async def release(self) -> None:
        """Another server may claim it at once."""
        if self._holder is not None:
            await self.change(lambda state: msgspec.structs.replace(state, holder=""))

    async def is_over(self) -> bool:
        """Whether it has ended in the store, by whomever."""
        document = await self._documents.get(self.owner, KIND, self.state.id)
        return document is None or state_of(document).has_ended

    async def _read(self) -> None:
        document = await self._documents.get(self.owner, KIND, self.state.id)
        kept = state_of(document) if document is not None else None
        if document is None or kept is None or kept.claim != self.state.claim or kept.is_behind(self.state):
            self._cancelled()
            raise ClaimLost
        self._became(kept, document.version)

    def _became(self, state: BatchState, version: int) -> None:
        before, self.state, self._version = self.state, state, version
        if state.status == "cancelling" != before.status:
            self._cancelled()
        self._saved(before, state)
