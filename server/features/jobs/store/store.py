"""The interface of every store of requests and documents, and what all stores share. All calls are durable when
they return.

Every call may raise StoreUnavailable, and every call that writes StoreFull. A request whose end could not be written
(`finish` raised StoreFull) is still in progress: call again later.

Times are unix seconds of the store's clock. If that clock goes back, every wait is cut to its own whole length from
then on, so nothing hangs; if it goes forward, requests may expire and results be purged early.

The functions at the end make ids and digests, and write parts of a request as the JSON text that stores keep.
"""

import asyncio
import contextlib
import hashlib
import heapq
import itertools
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from server.features.jobs.types import (
    Claimed,
    Delivery,
    Document,
    Finished,
    Headers,
    JobError,
    NewRequest,
    QueueCounts,
    RequestView,
    Result,
    RetryPolicy,
)

# Counted for each request and each document beside its own bytes: its row, its indexes, its page's empty part.
OVERHEAD_BYTES = 1024
# A file takes whole blocks of the disk, and its inode and its name beside them.
BLOCK_BYTES, INODE_BYTES = 4096, 512
MAX_RESULT_BYTES = (1 << 31) - 1  # more than any store keeps
MAX_BYTES_AT_ONCE = 64 << 20  # in memory: of one claim's bodies, or of the results in one answer of `due_webhooks`
BACKWARDS_SECONDS = 1.0  # a clock that goes back by less is being trimmed, not set
_JSON = ("headers", "retry", "errors")  # parts of a request that stores keep as JSON
T = TypeVar("T")


class StoreError(Exception):
    """A store could not do what it was asked for. Each class below is one answer to whoever asked."""


class StoreFull(StoreError):
    """There is no room: the quota, the queue's limit or the disk. Nothing of this call was kept; the next may find
    room."""


class StoreUnavailable(StoreError):
    """The store can't be reached, or is closed. Whether this call was kept is not known."""


class StoreUnusable(StoreError):
    """The store can't be opened: its place is another's, of another version, or without rights. Says what to do."""


class IdempotencyConflict(StoreError):
    """An earlier request of this owner has the same key and another content."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns among the owners that share something: who has least of it goes first.

    So nobody waits for another. An owner's own order is another matter: it is kept within its turns.

    held    how much each owner has now, who had its turn longest ago first; who is not named has nothing
    left    how much more an owner may get; who is not named, any number
    """

    held: Mapping[str, int] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)

    def given(self, waiting: Iterable[tuple[str, float]], first: Callable[[str], T | None]) -> Iterator[T]:
        """Yields what is to be taken, one after another: take each before you ask for the next.

        waiting  the owners that wait, each with what its oldest is ordered by
        first    an owner's first now; None = it has no more
        """
        places = {owner: place for place, owner in enumerate(self.held, 1)}
        later = itertools.count(len(places) + 1)
        left: dict[str, float] = dict(self.left)
        owners = [(self.held.get(owner, 0), places.get(owner, 0), since, owner) for owner, since in waiting]
        heapq.heapify(owners)
        while owners:
            held, _, since, owner = heapq.heappop(owners)
            if (more := left.get(owner, math.inf)) > 0 and (found := first(owner)) is not None:
                yield found
                left[owner] = more - 1
                heapq.heappush(owners, (held + 1, next(later), since, owner))


NO_TURNS = Turns()  # nobody has anything yet


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
        """The share of each bound that this owner may have."""
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
        """Returns None where there is none, or it is another owner's."""
        ...

    async def result(
        self, owner: str, request_id: str, *, offset: int = 0, count: int = MAX_RESULT_BYTES
    ) -> Result | None:
        """A part of the body: `count` bytes from `offset` on. None as for `view`, or if the request has no result
        (yet)."""
        ...

    async def cancel(self, owner: str, request_id: str) -> bool:
        """End a request that is QUEUED as CANCELED; its webhook is canceled too. False for all others."""
        ...

    async def counts(self, owner: str | None) -> QueueCounts:
        """The counts of one owner, or of all with None."""
        ...

    async def expire(self) -> int:
        """End requests that waited too long as EXPIRED, and make their webhooks due; at most 1,000 a call.

        Returns how many, with those that `claim` has ended since the last call.
        """
        ...

    async def purge(self) -> int:
        """Forget ended requests whose TTL is over and whose webhook is not pending. How many; at most 1,000 a call."""
        ...

    async def holders(self) -> dict[str, int]:
        """The number of bytes that each owner holds, documents and their files included."""
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
        """Note that a webhook was received."""
        ...

    async def delivery_failed(self, request_id: str, next_attempt_at: float | None) -> None:
        """Note that a webhook was not received: it is due again at that time, or given up with None."""
        ...

    async def next_due(self) -> float | None:
        """When the next expiry, purge or webhook is due; a time that has passed means now. None: nothing waits.

        Wait for it at most a minute at a time, for the clock may be set back.
        """
        ...

    async def claimable(self, seconds: float) -> None:
        """Return when there may be something to claim that came after the last `claim` began, or after so many seconds.

        For one waiter, after a claim that gave less than its limit. It may return though nothing arrived, but misses
        no arrival.
        """
        ...

    async def webhook_due(self, seconds: float) -> None:
        """Return when a webhook may be due that was not at the last `due_webhooks`, or after so many seconds."""
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
        """Returns None where there is none, or it is another owner's."""
        ...

    async def newest(self, owner: str, kind: str, *, after: str | None = None, limit: int = 20) -> list[Document]:
        """An owner's documents, the newest first, from the one behind `after` on. Empty if `after` is not known."""
        ...

    async def in_state(self, kind: str, state: str, *, after: str | None = None, limit: int = 100) -> list[Document]:
        """The documents of all owners in this state, the oldest first, from the one behind `after` on."""
        ...

    async def held(self, owner: str, kind: str) -> tuple[int, int]:
        """The number of documents that an owner has, and their `held_bytes` together."""
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
    """Requests and documents in one store. It is closed by whoever opened it."""

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


class Signal(asyncio.Event):
    """Wakes the one who waits for something new in a store. Nothing that came after `clear` is missed.

    Clear it, look, and wait only if there was nothing.
    """

    async def wait_for(self, seconds: float | None) -> None:
        """Return at once if it was set since it was cleared, else when it is, or after so many seconds if any."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()


def new_request_id(now: float) -> str:
    """A new id: 32 hexadecimal digits that nobody can guess; they begin with the time, so that an index grows at its
    end."""
    return f"{int(now * 1000) & (1 << 48) - 1:012x}{secrets.token_hex(10)}"


def content_digest(new: NewRequest) -> bytes:
    """The digest of all that a request's sender said, bar the idempotency key."""
    said = (new.route, new.headers, new.priority, new.max_time_in_queue, new.retry, new.webhook_endpoint)
    return hashlib.sha256(msgspec.json.encode(said) + b"\0" + new.body).digest()


def json_text(part: Headers | tuple[JobError, ...] | RetryPolicy) -> str:
    """A part of a request as stores keep it."""
    return msgspec.json.encode(part).decode()


def read_as(kind: type[T], **kept: Any) -> T:
    """What a store keeps of a request, by the names of its parts. Numbers may be texts, and JSON is read."""
    parts = {name: msgspec.json.decode(part) if name in _JSON else part for name, part in kept.items()}
    return msgspec.convert(parts, kind, strict=False)
