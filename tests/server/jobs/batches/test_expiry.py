"""Batches that ended long ago are forgotten, and no others."""

from pathlib import Path

import pytest

from server.features.jobs.batches import batches as expiry_module
from tests.server.jobs.batches.fake_batches import FakeServer, input_lines, joined, running, shared, when_ended
from tests.server.jobs.store.stores import Clock

TTL = 100.0


async def test_a_batch_is_forgotten_after_its_ttl_and_its_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry_module, "_PAGE", 1)
    clock = Clock()
    async with shared(tmp_path, clock, FakeServer()) as (place,):
        ids, outputs = [], []
        for _ in range(3):
            ids.append(await place.made(joined(input_lines(1))))
            async with running(place):
                outputs.append((await when_ended(place, ids[-1]))["output_file_id"])
            clock.now += TTL / 4
        still_open = await place.made(joined(input_lines(1)))
        assert await place.batches.forget(TTL) == 0
        clock.now += TTL / 2
        assert await place.batches.forget(TTL) == 2
        found = [state.id for state in await place.batches.newest("", after=None, limit=9)]
        assert found == [still_open, ids[2]]
        clock.now += 10 * TTL
        assert await place.batches.forget(TTL) == 1
        assert (await place.batches.get("", still_open)) is not None
        assert all([await place.files.info("", output) for output in outputs])
