"""What is told of batches that are open, of one owner and in the metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.features.jobs import gauges as gauges_module
from server.features.jobs.calls import Calls
from server.features.jobs.gauges import Gauges
from tests.batch_manager.peers import until
from tests.server.jobs.batches.fake_batches import (
    FakeServer,
    Gate,
    Place,
    input_lines,
    joined,
    opened,
    running,
    when_ended,
)
from wire.metrics import Recorder

CONTENT = joined([*input_lines(2), b"broken"])
NO_BATCHES = {"validating": 0, "in_progress": 0, "finalizing": 0, "cancelling": 0}
NO_LINES = {"completed": 0, "failed": 0, "left": 0}


@dataclass
class Counted:
    """Batches that run. The clock stands 30 s after each was made."""

    place: Place
    metrics: Recorder
    counts: Calls

    async def told(self, owner: str) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.to_builtins(await self.counts.document_counts(owner))
        return told


@asynccontextmanager
async def counted(folder: Path, server: Any) -> AsyncIterator[Counted]:
    """With gauges, whatever `server` answers."""
    async with opened(folder, server) as place:
        metrics = Recorder()
        gauges = Gauges(place.store, metrics, title="jobs 0")
        place.batches._saved, place.batches._clock = gauges.saved, lambda: 1_800_000_000.0
        counts = place.calls(lambda: 1_800_000_030.0)
        watching = asyncio.create_task(gauges.run())
        async with running(place):
            yield Counted(place, metrics, counts)
        watching.cancel()


async def test_an_owner_sees_its_open_batches_and_files(tmp_path: Path) -> None:
    gate = Gate(0)
    async with counted(tmp_path, gate) as seen:
        await seen.place.made(CONTENT, owner="anna")
        await gate.closed.wait()
        told = await seen.told("anna")
        assert told["batches"] == {
            "open": {**NO_BATCHES, "in_progress": 1},
            "oldest_age": 30.0,
            "lines": {**NO_LINES, "left": 3},
        }
        assert told["files"] == {"count": 1, "bytes": len(CONTENT)}
        of_bert = await seen.told("bert")
        assert of_bert["batches"] == {"open": NO_BATCHES, "oldest_age": 0.0, "lines": NO_LINES}
        assert of_bert["files"] == {"count": 0, "bytes": 0}


async def test_what_became_of_batches_and_lines_is_counted(tmp_path: Path) -> None:
    async with counted(tmp_path, FakeServer()) as seen:
        batch_id = await seen.place.made(CONTENT)
        await when_ended(seen.place, batch_id)
        await seen.place.batches.cancel("", batch_id)  # it has ended, so nothing changes
        assert {tuple(key): value for *key, value in seen.metrics.drain()["counts"]} == {
            ("embedline_jobs_batch_lines_total", "completed"): 2,
            ("embedline_jobs_batch_lines_total", "failed"): 1,
            ("embedline_jobs_batches_total", "completed"): 1,
            ("embedline_jobs_batch_faults_total",): 0,  # it is there before the first
        }


async def test_open_batches_are_a_level_by_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges_module, "PAUSE_SECONDS", 0.0)
    gate = Gate(0)
    async with counted(tmp_path, gate) as seen:
        await seen.place.made(CONTENT)

        def num_open() -> dict[str, float]:
            levels = [level for level in seen.metrics.levels() if level[0] == "embedline_jobs_batches_open"]
            return {status: value for _, _, status, value in levels}

        await until(lambda: num_open()["in_progress"] == 1)
        gate.opens()
        await until(lambda: not any(num_open().values()))
