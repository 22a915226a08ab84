"""What tests of the stores share: a clock that they set, and stores that can be closed and opened again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from server.features.jobs.store.store import Store, StoreLimits
from server.features.jobs.types import Document, Finished, NewRequest, RequestView, Result, Status

BEGIN = 1_800_000_000.0  # unix seconds
ANSWER = Result(200, (("x-embedline-shape", "1,4"),), b"\x00\xff" * 8, "application/octet-stream")
SUCCESS = Finished(Status.SUCCEEDED, ANSWER)
WEBHOOK = "https://example.com/hook"


@dataclass
class Clock:
    """Unix seconds that stand still until a test moves them."""

    now: float = BEGIN

    def __call__(self) -> float:
        return self.now


@dataclass
class Stores:
    """Opens one place with whatever limits, one store at a time unless a test says otherwise."""

    open_one: Callable[[StoreLimits, Clock], Awaitable[Store]]
    clock: Clock = field(default_factory=Clock)
    opened: list[Store] = field(default_factory=list)

    async def open(self, limits: StoreLimits | None = None) -> Store:
        store = await self.open_one(limits or StoreLimits(), self.clock)
        self.opened.append(store)
        return store

    async def reopen(self, limits: StoreLimits | None = None) -> Store:
        await self.close()
        return await self.open(limits)

    async def close(self) -> None:
        while self.opened:
            await self.opened.pop().close()


async def ended(store: Store, outcome: Finished = SUCCESS, **changes: Any) -> str:
    """The id of a request that was added, claimed and ended."""
    request_id = await store.requests.add(request(**changes))
    assert [one.request_id for one in await store.requests.claim(1)] == [request_id]
    assert await store.requests.finish(request_id, outcome)
    return request_id


async def view_of(store: Store, request_id: str) -> RequestView:
    view = await store.requests.view("anna", request_id)
    assert view is not None
    return view


def file(held_bytes: int, **changes: Any) -> Document:
    """The document of a file of so many bytes."""
    return replace(Document("file", "file-1", "anna", "ready", b"{}", created_at=0, held_bytes=held_bytes), **changes)


def request(number: int = 0, **changes: Any) -> NewRequest:
    """A small request; its body tells which."""
    values = {"owner": "anna", "route": "/v1/embeddings", "body": b"body %d" % number}
    return NewRequest(**{**values, **changes})
