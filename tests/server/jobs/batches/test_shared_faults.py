"""Batches of several servers where a disk is full or the store is away."""

import asyncio
import dataclasses
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from server.features.jobs.batches import batches as batches_module
from server.features.jobs.batches import outputs
from server.features.jobs.batches import run as batch_run
from server.features.jobs.batches.batches import open_batches
from server.features.jobs.batches.lines import Scan, scan
from server.features.jobs.batches.state import state_of
from server.features.jobs.store.store import StoreUnavailable
from server.features.jobs.types import Document
from tests.batch_manager.peers import until
from tests.server.jobs.batches.fake_batches import (
    LEASE,
    FakeServer,
    Gate,
    cut_off,
    input_lines,
    joined,
    opened,
    raising,
    running,
    shared,
    when_ended,
)
from tests.server.jobs.batches.test_shared_batches import CONTENT, COUNT, assert_whole, stand_still
from tests.server.jobs.store.stores import Clock


@pytest.fixture(autouse=True)
def _commits_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "COMMIT_SECONDS", 0.0)


async def test_a_server_without_room_for_its_copy_gives_up_a_claim_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, is_full, goes_on = outputs.copy, threading.Event(), threading.Event()
    refused: list[Path] = []

    def full(earlier: Path, path: Path, size: int) -> None:
        if refused and path not in refused:
            return copy(earlier, path, size)
        refused.append(path)
        is_full.set()
        goes_on.wait()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outputs, "copy", full)
    clock, gate, taken_over = Clock(), Gate(COUNT // 2), Gate(10)
    async with shared(tmp_path, clock, gate, FakeServer(), taken_over) as (first, second, third):
        batch_id = await cut_off(first, gate, CONTENT)
        await first.batches.release()
        async with running(second):
            await asyncio.to_thread(is_full.wait)
            stand_still(second)
            clock.now += LEASE + 1
            async with running(third):
                await taken_over.closed.wait()
                goes_on.set()
                await until(lambda: not second.batches._running)
                assert (await third.shown(batch_id))["status"] == "in_progress"


async def test_a_copy_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", raising(OSError(errno.ENOSPC, "No space left on device")))
    (tmp_path / "one.1").write_bytes(b"line")
    with pytest.raises(OSError, match="No space"):
        outputs.copy(tmp_path / "one.1", tmp_path / "one.2", 4)
    assert os.listdir(tmp_path) == ["one.1"]


async def test_a_store_that_was_away_costs_no_new_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shared(tmp_path, Clock(), FakeServer()) as (place,):
        replace, refused, claims = place.batches._documents.replace, 0, set[str]()

        async def away(document: Document) -> bool:
            nonlocal refused
            if refused < 4 and (refused or state_of(document).completed):
                refused += 1
                raise StoreUnavailable("Redis does not do it")
            if is_kept := await replace(document):  # else it has ended since the look that found it open
                claims.add(state_of(document).claim)
            return is_kept

        batch_id = await place.made(joined(input_lines(20)))
        monkeypatch.setattr(place.batches._documents, "replace", away)
        async with running(place):
            shown = await when_ended(place, batch_id)
    assert shown["request_counts"]["completed"] == 20
    assert refused == 4
    assert len(claims) == 1


async def test_a_store_that_went_back_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that takes over lacks the last writes: with them a server would skip the lines that they answered."""
    clock, gate = Clock(), Gate(150)
    async with shared(tmp_path, clock, gate) as (place,):
        replace, early = place.batches._documents.replace, list[Document]()

        async def noted(document: Document) -> bool:
            if not early and state_of(document).number > 40:
                early.append(document)
            return await replace(document)

        async def goes_back() -> bool:
            (now,) = await open_batches(place.documents)
            is_later = bool(early) and state_of(now).number > state_of(early[0]).number
            return is_later and await replace(dataclasses.replace(early[0], version=now.version))

        batch_id = await place.made(joined(input_lines(300)))
        monkeypatch.setattr(place.batches._documents, "replace", noted)
        async with running(place):
            await gate.closed.wait()
            while not await goes_back():  # else the server has saved a newer one meanwhile
                pass
            gate.opens()
            shown = await when_ended(place, batch_id)
        await assert_whole(place, tmp_path, shown, 300)
    assert len(gate.asked) > 300  # some lines were asked for again


@pytest.mark.parametrize(
    ("earlier", "is_behind"),
    [({}, False), ({"number": 4}, True), ({"status": "validating"}, True), ({"outputs_claim": ""}, True)],
)
async def test_which_state_is_behind(tmp_path: Path, earlier: dict[str, object], is_behind: bool) -> None:
    async with shared(tmp_path, Clock(), FakeServer()) as (place,):
        state = await place.batches.get("", await place.made(CONTENT))
    assert state is not None
    now = msgspec.structs.replace(state, number=5, status="in_progress", claim="one", outputs_claim="one")
    assert msgspec.structs.replace(now, **earlier).is_behind(now) is is_behind


async def test_a_server_that_is_not_ready_leaves_batches_to_others(tmp_path: Path) -> None:
    loading, ready = FakeServer(), FakeServer()
    async with shared(tmp_path, Clock(), loading, ready) as (first, second):
        first.batches.begin_more(False)
        batch_id = await first.made(CONTENT)
        async with running(first):
            for _ in range(100):
                await asyncio.sleep(0)
            async with running(second):
                shown = await when_ended(first, batch_id)
        await assert_whole(second, tmp_path, shown)
    assert loading.asked == []


async def test_a_file_that_another_server_deletes_while_it_is_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared(tmp_path, Clock(), FakeServer(), FakeServer()) as (first, second):
        file_id = await first.uploaded(b"line\n")
        (tmp_path / "files" / file_id).unlink()
        with pytest.raises(FileNotFoundError):
            await first.files.read("", file_id, 0, 9)
        info = first.files.info

        async def deleted_meanwhile(owner: str, file_id: str) -> object:
            found = await info(owner, file_id)
            await second.batches.delete_file(owner, file_id)
            return found

        monkeypatch.setattr(first.files, "info", deleted_meanwhile)
        assert await first.files.read("", file_id, 0, 9) is None


async def test_an_input_that_is_away_for_a_while_costs_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    def away(path: Path, stops: Callable[[], bool]) -> Scan | None:
        nonlocal refused
        refused += 1
        if refused < 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return scan(path, stops)

    monkeypatch.setattr(batch_run, "scan", away)
    async with shared(tmp_path, Clock(), FakeServer()) as (place,):
        batch_id = await place.made(CONTENT)
        async with running(place):
            await assert_whole(place, tmp_path, await when_ended(place, batch_id))


async def test_a_batch_whose_answers_are_gone_begins_anew(tmp_path: Path) -> None:
    clock, gate = Clock(), Gate(COUNT // 2)
    async with shared(tmp_path, clock, gate, FakeServer()) as (first, second):
        batch_id = await cut_off(first, gate, CONTENT)
        state = await first.batches.get("", batch_id)
        assert state is not None
        assert state.output_bytes
        (tmp_path / "files" / f"{state.output_file_id}.{state.claim}").unlink()
        clock.now += LEASE + 1
        async with running(second):
            shown = await when_ended(second, batch_id)
        await assert_whole(second, tmp_path, shown)


async def test_a_batch_whose_folder_is_away_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, gate, server = Clock(), Gate(COUNT // 2), FakeServer()
    async with shared(tmp_path, clock, gate, server) as (first, second):
        batch_id = await cut_off(first, gate, CONTENT)
        (tmp_path / "files").rename(tmp_path / "away")
        clock.now += LEASE + 1
        async with running(second):
            await until(lambda: "No such file" in caplog.text)
            (tmp_path / "away").rename(tmp_path / "files")
            shown = await when_ended(second, batch_id)
    assert shown["status"] == "completed"
    assert len(server.asked) < COUNT


async def test_a_server_that_lost_its_mount_leaves_the_batch_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "RETRY_PAUSE", 60.0)
    gate, server = Gate(COUNT // 2), FakeServer()
    async with shared(tmp_path, Clock(), gate, server) as (first, second):
        batch_id = await first.made(CONTENT)
        async with running(first):
            await gate.closed.wait()
            (run,) = first.batches._running.values()
            monkeypatch.setattr(run._outputs, "write", raising(OSError(errno.EIO, "Input/output error")))
            gate.opens()
            async with running(second):  # the clock stands still: no claim is over
                shown = await when_ended(second, batch_id)
        await assert_whole(second, tmp_path, shown)
    assert len(server.asked) > COUNT // 3


async def test_a_server_whose_mount_hangs_does_not_renew_its_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gate, server = Clock(), Gate(COUNT // 2), FakeServer()
    hangs, goes_on = threading.Event(), threading.Event()
    async with shared(tmp_path, clock, gate, server) as (first, second):
        batch_id = await first.made(CONTENT)
        async with running(first):
            await gate.closed.wait()
            (run,) = first.batches._running.values()

            def hang(*_: object) -> None:
                hangs.set()
                goes_on.wait()

            monkeypatch.setattr(run._outputs, "write", hang)
            gate.opens()
            await asyncio.to_thread(hangs.wait)
            clock.now += LEASE + 1
            for _ in range(100):
                await asyncio.sleep(0)  # it looks for what others have changed
            async with running(second):
                shown = await when_ended(second, batch_id)
                goes_on.set()
                await until(lambda: not first.batches._running)
        await assert_whole(second, tmp_path, shown)


async def test_batches_wait_for_a_folder_that_is_away_after_a_kill(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        ids = [await place.made(CONTENT) for _ in range(6)]
        deleted = await place.uploaded(b"line")
    (tmp_path / "files").rename(tmp_path / "away")
    async with opened(tmp_path, FakeServer()) as place:
        assert "the folder of files is away" in caplog.text
        with pytest.raises(OSError, match="No such file"):
            await place.uploaded(b"more")
        with pytest.raises(OSError, match="No such file"):
            await place.batches.delete_file("", deleted)
        async with running(place):
            await until(lambda: all(f"{one} waits" in caplog.text for one in ids))
            assert {(await place.shown(one))["status"] for one in ids} == {"validating"}
            (tmp_path / "away").rename(tmp_path / "files")
            shown = [await when_ended(place, one) for one in ids]
    assert {one["status"] for one in shown} == {"completed"}
    assert {one["request_counts"]["completed"] for one in shown} == {COUNT}
