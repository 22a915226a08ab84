"""Batches of several servers where a disk is full or the store is away."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from server.jobs.batches import batches as batches_module
from server.jobs.batches import run as batch_run
from server.jobs.batches.outputs import Output
from server.jobs.batches.state import state_of
from server.jobs.store.errors import StoreUnavailable
from server.jobs.types import Document
from tests.server.jobs.batches.fake_batches import LEASE, FakeServer, Gate, input_lines, joined, shared, when_ended
from tests.server.jobs.batches.test_shared_batches import CONTENT, running, stand_still
from tests.server.jobs.store.stores import Clock

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(batch_run, "FULL_PAUSE", 0.0)
    monkeypatch.setattr(batches_module, "LOOK_SECONDS", 0.0)


async def test_a_server_without_room_for_its_copy_gives_up_a_claim_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, is_full, goes_on = Output.copy, threading.Event(), threading.Event()
    refused: list[Path] = []

    def full(self: Output, earlier: Path, size: int) -> None:
        if refused and self.path not in refused:
            return copy(self, earlier, size)
        refused.append(self.path)
        is_full.set()
        goes_on.wait()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Output, "copy", full)
    clock, gate, taken_over = Clock(), Gate(150), Gate(10)
    async with shared(tmp_path, clock, gate, FakeServer(), taken_over) as (first, second, third):
        batch_id = await first.made(CONTENT)
        async with running(first):
            await gate.closed.wait()
        await first.batches.release()
        async with running(second):
            await asyncio.to_thread(is_full.wait)
            stand_still(second)
            clock.now += LEASE + 1
            async with running(third):
                await taken_over.closed.wait()
                goes_on.set()
                while second.batches._running:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                assert (await third.shown(batch_id))["status"] == "in_progress"


async def test_a_copy_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    (tmp_path / "one.1").write_bytes(b"line")
    with pytest.raises(OSError, match="No space"):
        Output(tmp_path / "one.2").copy(tmp_path / "one.1", 4)
    assert os.listdir(tmp_path) == ["one.1"]


async def test_a_store_that_was_away_costs_no_new_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(tmp_path, Clock(), FakeServer()) as (place,):
        replace, refused, claims = place.batches._documents.replace, 0, set[str]()

        async def away(document: Document) -> bool:
            nonlocal refused
            claims.add(state_of(document).claim)
            if refused < 4 and (refused or state_of(document).completed):
                refused += 1
                raise StoreUnavailable("Redis does not do it")
            return await replace(document)

        batch_id = await place.made(joined(input_lines(20)))
        monkeypatch.setattr(place.batches._documents, "replace", away)
        async with running(place):
            shown = await when_ended(place, batch_id)
    assert shown["request_counts"]["completed"] == 20
    assert refused == 4
    assert len(claims) == 1
