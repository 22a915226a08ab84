"""What a store of requests and documents does, whichever it is. All calls are durable when they return.

Every call may raise StoreUnavailable, and every call that writes StoreFull. A request whose end could not be written
(`finish` raised StoreFull) is still in progress: call again later.

Times are unix seconds of the store's clock. If that clock goes back, every wait is cut to its own whole length from
then on, so nothing hangs; if it goes forward, requests may expire and results be purged early.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.jobs.store.turns import Turns
from server.jobs.types import (
    Claimed,
    Delivery,
    Document,
    Finished,
    NewRequest,
    QueueCounts,
    RequestView,
    Result,
)

# Counted for each request and each document beside its own bytes: its row, its indexes, its page's empty part.
OVERHEAD_BYTES = 1024
NO_TURNS = Turns()  # nobody has anything yet
MAX_RESULT_BYTES = (1 << 31) - 1  # more than any store keeps
# A file takes whole blocks of the disk, and its inode and its name beside them.
BLOCK_BYTES, INODE_BYTES = 4096, 512


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """`quota_bytes` bounds all that is kept, documents' `held_bytes` included.

    Requests that wait or run take at most half of the quota, so that results find room. A request is claimed while
    the room of its result is there, by the size of its owner's latest; a result that finds none is not kept.
    """

    quota_bytes: int = 10 << 30
    key_share: float = 1.0  # of each bound, what one owner may have; one without a name may have all
    max_queued: int = 1_000_000  # requests
    result_ttl: float = 86_400.0  # seconds from a request's end until it is forgotten
    claim_lease: float = 60.0  # seconds; on a store that several servers share, what is not renewed is another's then
    delivery_lease: float = 60.0  # seconds after which a delivery that nobody reported is due again

    def share_of(self, owner: str) -> float:
        """Of each bound, what this owner may have."""
        return self.key_share if owner else 1.0

    def quota_of(self, owner: str) -> int:
        """Bytes that this owner may hold."""
        return int(self.quota_bytes * self.share_of(owner))


class RequestStore(Protocol):
    """Requests from their arrival to the end of their TTL."""

    async def add(self, new: NewRequest) -> str:
        """Keep a request; its id.

        With the idempotency key of an earlier request of this owner that is still kept: that one's id if all of it is
        the same, else IdempotencyConflict. StoreFull where there is no room; the request was not kept then.
        """
        ...

    async def claim(self, limit: int, turns: Turns = NO_TURNS) -> list[Claimed]:
        """Up to `limit` requests to run now, of the owners in turn, of each by priority, then age.

        They are IN_PROGRESS from then on. `turns` has what of each owner runs already.

        Those that waited longer than their max_time_in_queue end as EXPIRED instead.
        """
        ...

    async def renew(self, request_ids: Sequence[str]) -> None:
        """Keep claimed requests for another `claim_lease`: call it every third of that. SQLite has no lease."""
        ...

    async def finish(self, request_id: str, outcome: Finished) -> bool:
        """End a request and make its webhook due. False if it ended before or is not known: the first end stays.

        StoreFull where the result finds no room in the quota; one that has more bytes than its owner may hold is not
        waited for, and the request ends as FAILED.
        """
        ...

    async def release(self, request_ids: Sequence[str]) -> None:
        """Put claimed requests back where they were in the queue. Others in the list are left alone."""
        ...

    async def view(self, owner: str, request_id: str) -> RequestView | None:
        """None where there is none, or it is another owner's."""
        ...

    async def result(
        self, owner: str, request_id: str, *, offset: int = 0, count: int = MAX_RESULT_BYTES
    ) -> Result | None:
        """None as for `view`, and where the request has none (yet). Of its body so many bytes from the offset on."""
        ...

    async def cancel(self, owner: str, request_id: str) -> bool:
        """End a request that is QUEUED as CANCELED; its webhook is canceled too. False for all others."""
        ...

    async def counts(self, owner: str | None) -> QueueCounts:
        """Of one owner, or of all with None."""
        ...

    async def expire(self) -> int:
        """End requests that waited too long as EXPIRED, and make their webhooks due; at most 1,000 a call.

        How many, and what claims have ended so since the last call.
        """
        ...

    async def purge(self) -> int:
        """Forget ended requests whose TTL is over and whose webhook is not pending. How many; at most 1,000 a call."""
        ...

    async def holders(self) -> dict[str, int]:
        """How many bytes each owner holds, documents and their files included."""
        ...

    async def end_ttl(self, owner: str) -> None:
        """The TTL of this owner's ended requests is over, so `purge` forgets them; not of those with a webhook due."""
        ...

    async def due_webhooks(self, limit: int, turns: Turns = NO_TURNS) -> list[Delivery]:
        """Webhooks to send now, of the owners in turn, of each what is due longest.

        Each is due again after `delivery_lease` if nobody reports what became of it.
        """
        ...

    async def delivered(self, request_id: str) -> None:
        """A webhook was received."""
        ...

    async def delivery_failed(self, request_id: str, next_attempt_at: float | None) -> None:
        """A webhook was not received: it is due again at that time, or given up with None."""
        ...

    async def next_due(self) -> float | None:
        """When the next expiry, purge or webhook is due; a time that has passed means now. None: nothing waits.

        Wait for it at most a minute at a time, for the clock may be set back.
        """
        ...

    async def claimable(self, seconds: float) -> None:
        """Return when there may be something to claim that came after the last `claim` began, or after so many seconds.

        For one waiter, after a claim that gave less than its limit. No arrival is missed, and some are none.
        """
        ...

    async def webhook_due(self, seconds: float) -> None:
        """The same for webhooks, after the last `due_webhooks`."""
        ...


class DocumentStore(Protocol):
    """Documents of files and batches."""

    async def put(self, document: Document, *, needs: int | None = None) -> None:
        """Keep a new document. StoreFull where its `held_bytes` and content find no room.

        needs  bytes of a file that have to find room in place of `held_bytes`: more where they grow, 0 where another
               document holds their room until then
        """
        ...

    async def get(self, owner: str, kind: str, document_id: str) -> Document | None:
        """None where there is none, or it is another owner's."""
        ...

    async def newest(self, owner: str, kind: str, *, after: str | None = None, limit: int = 20) -> list[Document]:
        """An owner's documents, the newest first, from the one behind `after` on. Empty if `after` is not known."""
        ...

    async def in_state(self, kind: str, state: str, *, after: str | None = None, limit: int = 100) -> list[Document]:
        """All owners' documents in this state, the oldest first, from the one behind `after` on."""
        ...

    async def held(self, owner: str, kind: str) -> tuple[int, int]:
        """How many documents an owner has, and their `held_bytes` together."""
        ...

    async def replace(self, document: Document) -> bool:
        """Write a document anew if the kept one still has its `version`, which then grows by one; else False.

        StoreFull if its `held_bytes` grow and find no room.
        """
        ...

    async def delete(self, owner: str, kind: str, document_id: str) -> bool:
        """Forget a document; whether there was one."""
        ...


class Store(Protocol):
    """Both, in one place. Closed by whoever opened it."""

    @property
    def requests(self) -> RequestStore: ...

    @property
    def documents(self) -> DocumentStore: ...

    async def close(self) -> None:
        """Returns when all that was asked for is written. Calls after it raise StoreUnavailable."""
        ...


def delay_until(due: float | None, now: float, *, longest: float = 60.0) -> float:
    """Seconds to wait for `next_due`, bounded as it asks for."""
    return min(longest, max(0.0, due - now)) if due is not None and math.isfinite(due) else longest
