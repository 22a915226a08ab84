"""Batches over a real store and a folder, with a server that answers at once in the test's own process."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from server.features.jobs.batches.batches import Batches
from server.features.jobs.batches.state import Holder
from server.features.jobs.calls import Calls
from server.features.jobs.files import Files, Objects
from server.features.jobs.http_client import HttpAnswer
from server.features.jobs.pace import SendQueue
from server.features.jobs.store.sqlite import open_sqlite
from server.features.jobs.store.store import DocumentStore, RequestStore, Store, StoreLimits
from server.features.jobs.webhook_addresses import AddressRules
from tests.batch_manager.peers import until
from tests.server.jobs.store.stores import Clock
from wire.metrics import Recorder

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

    def calls(self, clock: Callable[[], float] = time.time) -> Calls:
        how: dict[str, Any] = {"addresses": AddressRules(), "metrics": Recorder(), "changed": lambda: None}
        return Calls(self.store, self.files, self.batches, clock=clock, **how)

    async def uploaded(self, content: bytes, owner: str = "") -> str:
        file_id = await self.files.begin(owner, "in.jsonl", "batch", len(content))
        await self.files.append(owner, file_id, memoryview(content))
        await self.files.end(owner, file_id)
        return file_id

    async def made(
        self,
        content: bytes,
        *,
        owner: str = "",
        input_id: str = "",
        endpoint: str = "/v1/embeddings",
        window: str = "24h",
        **metadata: str,
    ) -> str:
        """The id of a new batch, of a new file by default."""
        state = await self.batches.create(
            owner,
            endpoint=endpoint,
            input_file_id=input_id or await self.uploaded(content, owner),
            completion_window=window,
            metadata=metadata,
        )
        return state.id

    async def shown(self, batch_id: str) -> dict[str, Any]:
        state = await self.batches.get("", batch_id)
        assert state is not None
        return state.shown()

    async def lines(self, file_id: str | None, owner: str = "") -> list[dict[str, Any]]:
        """Of an output; none without a file."""
        if file_id is None:
            return []
        content = await self.files.read(owner, file_id, 0, 1 << 30)
        assert content is not None
        return [json.loads(line) for line in content.splitlines()]

    async def custom_ids(self, file_id: str | None, owner: str = "") -> list[str]:
        """Those of the lines of an output."""
        return [line["custom_id"] for line in await self.lines(file_id, owner)]


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


def names(count: int) -> list[str]:
    """The names of as many lines."""
    return [f"c{number}" for number in range(count)]


def raising(error: Exception) -> Callable[..., Any]:
    """A function that fails with this error."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


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


async def cut_off(place: Place, gate: Gate, content: bytes) -> str:
    """The id of a batch whose process is killed when the gate has closed."""
    batch_id = await place.made(content)
    async with running(place):
        await gate.closed.wait()
    return batch_id


async def ended(place: Place, batch_id: str) -> dict[str, Any]:
    """Runs batches until this one has ended."""
    async with running(place):
        return await when_ended(place, batch_id)


async def when_ended(place: Place, batch_id: str, owner: str = "") -> dict[str, Any]:
    while not (state := await place.batches.get(owner, batch_id)) or not state.has_ended:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await until(lambda: batch_id not in place.batches._running)  # its end is in the store, and counted a moment later
    return state.shown()


class Ran(NamedTuple):
    """A batch that has ended, and the lines of its two files."""

    shown: dict[str, Any]
    found: list[dict[str, Any]]
    errors: list[dict[str, Any]]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Lines in all, answered, failed."""
        total, completed, failed = self.shown["request_counts"].values()
        return total, completed, failed


async def ran(folder: Path, content: bytes, server: FakeServer | None = None, **metadata: str) -> Ran:
    """What became of a batch of these lines."""
    async with opened(folder, server or FakeServer()) as place:
        shown = await ended(place, await place.made(content, **metadata))
        return Ran(shown, await place.lines(shown["output_file_id"]), await place.lines(shown["error_file_id"]))
