"""Batches over a real store and a folder, with a server that answers at once in the test's own process."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.features.jobs.batches.batches import Batches
from server.features.jobs.batches.state import Holder
from server.features.jobs.files import Files, Objects
from server.features.jobs.http_client import HttpAnswer
from server.features.jobs.pace import SendQueue
from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import DocumentStore, RequestStore, Store, StoreLimits
from tests.server.jobs.store.stores import Clock

LEASE = 60.0
JSON = {"content-type": "application/json"}


@dataclass
class FakeServer:
    """Answers with the body that it got."""

    asked: list[str] = field(default_factory=list)  # ids, in order
    status: int = 200

    async def ask(self, queue: SendQueue, route: str, body: bytes, request_id: str, **more: Any) -> HttpAnswer:
        self.asked.append(request_id)
        return HttpAnswer(self.status, {**JSON, "x-request-id": request_id}, b'{"echo":%s}' % body)


class Gate(FakeServer):
    """Answers so many, then none until it opens."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.closed, self._open = asyncio.Event(), asyncio.Event()

    def opens(self) -> None:
        self.count = sys.maxsize
        self._open.set()

    async def ask(self, queue: SendQueue, route: str, body: bytes, request_id: str, **more: Any) -> HttpAnswer:
        if len(self.asked) >= self.count:
            self.closed.set()
            await self._open.wait()
        return await super().ask(queue, route, body, request_id, **more)


@dataclass
class Place:
    """Files and batches as the process has them."""

    files: Files
    batches: Batches
    store: Store

    @property
    def documents(self) -> DocumentStore:
        return self.store.documents

    @property
    def requests(self) -> RequestStore:
        return self.store.requests

    async def uploaded(self, content: bytes, owner: str = "") -> str:
        file_id = await self.files.begin(owner, "in.jsonl", "batch", len(content))
        await self.files.append(owner, file_id, memoryview(content))
        await self.files.end(owner, file_id)
        return file_id

    async def made(self, content: bytes, *, owner: str = "", input_id: str = "", **metadata: str) -> str:
        """The id of a new batch for embeddings, of a new file by default."""
        state = await self.batches.create(
            owner,
            endpoint="/v1/embeddings",
            input_file_id=input_id or await self.uploaded(content, owner),
            completion_window="24h",
            metadata=metadata,
        )
        return state.id

    async def shown(self, batch_id: str) -> dict[str, Any]:
        state = await self.batches.get("", batch_id)
        assert state is not None
        return state.shown()

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Of an output; none without a file."""
        if file_id is None:
            return []
        content = await self.files.read("", file_id, 0, 1 << 30)
        assert content is not None
        return [json.loads(line) for line in content.splitlines()]


@asynccontextmanager
async def opened(
    folder: Path, server: Any, objects: Objects | None = None, limits: StoreLimits | None = None
) -> AsyncIterator[Place]:
    store = await open_sqlite(folder / "store", limits)
    files = Files(folder / "files", store.documents, objects=objects)
    await files.open()
    try:
        yield Place(files, Batches(files, store.documents, ask=server.ask), store)
    finally:
        await store.close()


@asynccontextmanager
async def shared(folder: Path, clock: Clock, *servers: Any) -> AsyncIterator[list[Place]]:
    """The processes of several servers with one store and one folder."""
    store = await open_sqlite(folder / "store")
    places = []
    for number, server in enumerate(servers):
        files = Files(folder / "files", store.documents, is_shared=True, clock=clock)
        await files.open()
        holder = Holder(f"server {number}", LEASE)
        places.append(Place(files, Batches(files, store.documents, ask=server.ask, clock=clock, holder=holder), store))
    try:
        yield places
    finally:
        await store.close()


def input_lines(count: int, **changes: object) -> list[bytes]:
    return [
        json.dumps(
            {"custom_id": f"c{number}", "method": "POST", "url": "/v1/embeddings", "body": {"n": number}, **changes}
        ).encode()
        for number in range(count)
    ]


def joined(lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"


@asynccontextmanager
async def running(place: Place) -> AsyncIterator[None]:
    """Killed after the block: it releases nothing."""
    task = asyncio.create_task(place.batches.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def ended(place: Place, batch_id: str) -> dict[str, Any]:
    """Runs batches until this one has ended."""
    async with running(place):
        return await when_ended(place, batch_id)


async def when_ended(place: Place, batch_id: str, owner: str = "") -> dict[str, Any]:
    while not (state := await place.batches.get(owner, batch_id)) or not state.has_ended:  # noqa: ASYNC110
        await asyncio.sleep(0)
    while batch_id in place.batches._running:  # noqa: ASYNC110  its end is in the store, and counted a moment later
        await asyncio.sleep(0)
    return state.shown()
