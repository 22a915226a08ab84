"""The state of a batch as it is kept: what its owner sees, and how far it has come. The state of a batch that runs here
is changed by this process alone, but for a client's cancel.

Servers that share a store claim a batch for a time, and each change claims it anew. A server that stood still for
longer finds another claim at its next change. What it wrote meanwhile counts for nothing: each claim has outputs of its
own.
"""

import asyncio
import dataclasses
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from server.features.jobs.store.store import BLOCK_BYTES, DocumentStore, StoreFull
from server.features.jobs.types import Document

KIND = "batch"
SERVER_FAULT = "server_error"  # the code of a batch that failed by our own fault
OPEN, ENDED = "open", "ended"  # states of its document
OPEN_STATUSES = ("validating", "in_progress", "finalizing", "cancelling")
_ENDS = ("completed", "failed", "expired", "cancelled")
_PROGRESS = ("completed", "failed", "offset", "number", "output_bytes", "error_bytes")
_STATUSES = OPEN_STATUSES + _ENDS  # of one claim none goes back
_FILES_BYTES = 3 * BLOCK_BYTES  # for two files beside their bytes: what is known of them, and their last blocks
AHEAD_BYTES = 4 << 20  # reserved beside what is needed, so that not each commit has to


class BatchError(msgspec.Struct, frozen=True):
    """The reason why a whole batch failed."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """Times are unix seconds. From `total` on: what is committed, so all of it is on the disk, and no more counts."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    created_at: int
    expires_at: int
    output_file_id: str  # shown at the end, if there is such a file
    error_file_id: str
    status: str = "validating"
    times: dict[str, int] = {}  # "in_progress_at" and the like
    errors: tuple[BatchError, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    offset: int = 0  # bytes of the input that have been answered
    number: int = 0  # of the last line that has been answered
    output_bytes: int = 0
    error_bytes: int = 0
    reserved_bytes: int = 0  # for outputs; all of them find room in these
    has_expired: bool = False  # a line was not answered because of the time
    holder: str = ""  # the server that runs it, where several share a store
    held_until: float = 0.0  # unix seconds; then another one may claim it
    claim: str = ""  # its claim, which has outputs of its own; another one each time that it is claimed
    outputs_claim: str = ""  # whose outputs have what is committed

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDS

    def is_behind(self, other: "BatchState") -> bool:
        """Whether this is an earlier state of the same claim: a Redis that took over may lack the last writes."""
        return (
            self.number < other.number
            or _STATUSES.index(self.status) < _STATUSES.index(other.status)
            or self.outputs_claim != other.outputs_claim == other.claim
        )

    def anew(self) -> "BatchState":
        """The batch without an answer, for the outputs of its claim."""
        changes: dict[str, Any] = dict.fromkeys(_PROGRESS, 0)
        changes |= {"has_expired": False, "outputs_claim": self.claim}
        status = "in_progress" if self.status == "finalizing" else self.status
        return msgspec.structs.replace(self, status=status, **changes)

    def become(self, status: str, now: float, **changes: Any) -> "BatchState":
        """The next state, with the time when it began."""
        times = {**self.times, f"{status}_at": int(now)}
        return msgspec.structs.replace(self, status=status, times=times, **changes)

    def shown(self) -> dict[str, Any]:
        """The batch in OpenAI's words."""
        names = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        errors = {"object": "list", "data": [msgspec.to_builtins(error) for error in self.errors]}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if self.has_ended and self.output_bytes else None,
            "error_file_id": self.error_file_id if self.has_ended and self.error_bytes else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{name}_at": self.times.get(f"{name}_at") for name in names},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }

    def document(self, owner: str, version: int = 1) -> Document:
        """The document that the store keeps; bytes of outputs are counted here until their files are seen."""
        held = 0 if self.has_ended else max(self.reserved_bytes, self.output_bytes + self.error_bytes)
        state = ENDED if self.has_ended else OPEN
        content = msgspec.json.encode(self)
        return Document(
            KIND, self.id, owner, state, content, created_at=self.created_at, held_bytes=held, version=version
        )


def state_of(document: Document) -> BatchState:
    return msgspec.json.decode(document.content, type=BatchState)


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
        """Claims the batch and returns it as it is kept then; None if another server was quicker."""
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
        """Changes the state, which is durable when it returns. `changed` may be called again, with a state that was
        cancelled meanwhile."""
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
        """Claim the batch anew."""
        await self.change(lambda state: state)

    async def release(self) -> None:
        """Gives the claim up, so that another server may claim the batch at once."""
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
