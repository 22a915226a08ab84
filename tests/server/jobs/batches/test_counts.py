"""What is told of batches that are open, of one owner and in the metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.features.jobs import gauges
from server.features.jobs.batches.batches import Batches
from server.features.jobs.calls import Documents
from server.features.jobs.files import Files
from server.features.jobs.gauges import BatchGauges
from server.features.jobs.http_client import HttpAnswer
from server.features.jobs.store.sqlite import open_sqlite
from tests.server.jobs.batches.fake_batches import FakeServer, Place, input_lines, joined, when_ended
from wire.metrics import Recorder

CONTENT = joined([*input_lines(2), b"broken"])
NO_BATCHES = {"validating": 0, "in_progress": 0, "finalizing": 0, "cancelling": 0}
NO_LINES = {"completed": 0, "failed": 0, "left": 0}


class Counted(Place):
    """Its clock stands 30 s after every batch was made."""

    metrics: Recorder
    counts: Documents

    async def told(self, owner: str) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(await self.counts.document_counts(owner))
        return told

    def counted(self) -> dict[tuple[str, ...], float]:
        return {tuple(key): value for *key, value in self.metrics.drain()["counts"]}


@asynccontextmanager
async def running(folder: Path, server: Any) -> AsyncIterator[Counted]:
    """Batches that run, whatever `server` answers."""
    store = await open_sqlite(folder / "store")
    files, metrics = Files(folder / "files", store.documents), Recorder()
    await files.open()
    watching = BatchGauges(store.documents, metrics, title="jobs 0")
    batches = Batches(files, store.documents, ask=server.ask, saved=watching.saved, clock=lambda: 1_800_000_000.0)
    place = Counted(files, batches, store)
    place.metrics, place.counts = metrics, Documents(files, batches, store.documents, lambda: 1_800_000_030.0)
    tasks = [asyncio.create_task(one.run()) for one in (batches, watching)]
    try:
        yield place
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await store.close()


class Gate(FakeServer):
    """Answers nothing before it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()
        self.was_asked = asyncio.Event()

    async def ask(self, *given: Any, **more: Any) -> HttpAnswer:
        self.was_asked.set()
        await self.is_open.wait()
        return await super().ask(*given, **more)


async def test_an_owner_sees_its_open_batches_and_files(tmp_path: Path) -> None:
    gate = Gate()
    async with running(tmp_path, gate) as place:
        await place.made(CONTENT, owner="anna")
        await gate.was_asked.wait()
        told = await place.told("anna")
        assert told["batches"] == {
            "open": {**NO_BATCHES, "in_progress": 1},
            "oldest_age": 30.0,
            "lines": {**NO_LINES, "left": 3},
        }
        assert told["files"] == {"count": 1, "bytes": len(CONTENT)}
        of_bert = await place.told("bert")
        assert of_bert["batches"] == {"open": NO_BATCHES, "oldest_age": 0.0, "lines": NO_LINES}
        assert of_bert["files"] == {"count": 0, "bytes": 0}


async def test_what_became_of_batches_and_lines_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path, FakeServer()) as place:
        batch_id = await place.made(CONTENT)
        await when_ended(place, batch_id)
        await place.batches.cancel("", batch_id)  # it has ended, so nothing changes
        assert place.counted() == {
            ("embedline_jobs_batch_lines_total", "completed"): 2,
            ("embedline_jobs_batch_lines_total", "failed"): 1,
            ("embedline_jobs_batches_total", "completed"): 1,
            ("embedline_jobs_batch_faults_total",): 0,  # it is there before the first
        }


async def test_open_batches_are_a_level_by_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "PAUSE_SECONDS", 0.0)
    gate = Gate()
    async with running(tmp_path, gate) as place:
        await place.made(CONTENT)
        levels = place.metrics.levels
        while ["embedline_jobs_batches_open", "jobs 0", "in_progress", 1] not in levels():  # noqa: ASYNC110
            await asyncio.sleep(0)
        gate.is_open.set()
        while any(value for *_, value in levels()):  # noqa: ASYNC110
            await asyncio.sleep(0)
