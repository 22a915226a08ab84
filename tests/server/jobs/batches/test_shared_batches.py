"""Batches of several servers with one store and one folder: one runs each, another goes on when it is gone."""

import asyncio
import random
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.features.jobs.batches import outputs
from server.features.jobs.batches import run as batch_run
from server.features.jobs.batches.state import BatchState, Holder
from server.features.jobs.store.store import StoreUnavailable
from server.features.jobs.types import Document
from server.requests.errors import InvalidRequest
from tests.batch_manager.peers import until
from tests.server.jobs.batches.fake_batches import (
    LEASE,
    FakeServer,
    Gate,
    Place,
    cut_off,
    input_lines,
    joined,
    names,
    running,
    shared,
    when_ended,
)
from tests.server.jobs.store.stores import BEGIN, Clock

COUNT = 120
CONTENT = joined(input_lines(COUNT))


@pytest.fixture(autouse=True)
def _commits_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "COMMIT_SECONDS", 0.0)


def stand_still(place: Place) -> None:
    """Its claims are not renewed, as by a process that is stopped."""

    async def look(document: Document) -> None:
        pass

    for run in place.batches._running.values():
        run.kept.look = look  # type: ignore[method-assign]


@dataclass
class Stopping:
    """A store of documents whose `get` is another one."""

    documents: Any
    get: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.documents, name)


async def assert_whole(place: Place, folder: Path, shown: dict[str, Any], count: int = COUNT) -> None:
    """Each line once and in order, and nothing of either server is left beside the input and the output."""
    assert shown["status"] == "completed"
    assert shown["request_counts"] == {"total": count, "completed": count, "failed": 0}
    assert await place.custom_ids(shown["output_file_id"]) == names(count)
    assert {path.name for path in (folder / "files").iterdir()} == {shown["input_file_id"], shown["output_file_id"]}


@pytest.mark.holds("Each line of a batch has exactly one line of output")
async def test_another_server_ends_the_batch_of_one_that_died(tmp_path: Path) -> None:
    clock, gate, server = Clock(), Gate(COUNT // 2), FakeServer()
    async with shared(tmp_path, clock, gate, server) as (first, second):
        batch_id = await cut_off(first, gate, CONTENT)
        async with running(second):
            await first.made(joined(input_lines(1)))  # which the second runs meanwhile
            await until(lambda: bool(server.asked))
            assert (await second.shown(batch_id))["status"] == "in_progress"
            assert len(server.asked) == 1
            clock.now += LEASE + 1
            shown = await when_ended(second, batch_id)
        assert 1 < len(server.asked) < COUNT
        assert await second.custom_ids(shown["output_file_id"]) == names(COUNT)


@pytest.mark.holds("Each line of a batch has exactly one line of output")
async def test_a_server_that_stood_still_writes_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops in the middle of a write, for longer than its claim, and goes on when another server is done."""
    write, stands, goes_on = outputs.write, threading.Event(), threading.Event()

    def stopping(path: Path, content: bytes, at: int) -> None:
        if at and not stands.is_set():
            stands.set()
            goes_on.wait()
        write(path, content, at)

    monkeypatch.setattr(outputs, "write", stopping)
    clock, server = Clock(), FakeServer()
    async with shared(tmp_path, clock, server, FakeServer()) as (first, second):
        batch_id = await first.made(CONTENT)
        async with running(first):
            await asyncio.to_thread(stands.wait)
            stand_still(first)
            clock.now += LEASE + 1
            async with running(second):
                shown = await when_ended(second, batch_id)
            goes_on.set()
            await until(lambda: not first.batches._running)
        await assert_whole(second, tmp_path, shown)


async def test_a_server_that_comes_back_when_all_is_deleted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops as it is about to name the output's file."""
    clock = Clock()
    async with shared(tmp_path, clock, FakeServer(), FakeServer()) as (first, second):
        stands, goes_on = asyncio.Event(), asyncio.Event()
        keep, stat = first.files.keep, first.files._documents.get

        async def stopping(owner: str, file_id: str, filename: str) -> None:
            async def get(*given: Any) -> Document | None:
                found = await stat(*given)
                stands.set()
                await goes_on.wait()
                return found

            with monkeypatch.context() as context:
                context.setattr(first.files, "_documents", Stopping(first.files._documents, get))
                await keep(owner, file_id, filename)

        batch_id = await first.made(CONTENT)
        monkeypatch.setattr(first.files, "keep", stopping)
        async with running(first):
            await stands.wait()
            stand_still(first)
            clock.now += LEASE + 1
            async with running(second):
                shown = await when_ended(second, batch_id)
            await assert_whole(second, tmp_path, shown)
            assert await second.batches.delete_file("", shown["output_file_id"])
            goes_on.set()
            await until(lambda: not first.batches._running)
        assert [info.id for info in await second.files.newest("", after=None, limit=9)] == [shown["input_file_id"]]
        assert {path.name for path in (tmp_path / "files").iterdir()} == {shown["input_file_id"]}


async def test_claims_that_are_lost_again_and_again_lose_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server takes the other for dead at random, whatever that one does at the moment."""
    choose, claims = random.Random(22), list[str]()
    claim, may_claim = Holder.claim, Holder.may_claim

    def may(self: Holder, state: BatchState, now: float) -> bool:
        return (len(claims) < 50 and choose.random() < 0.05) or may_claim(self, state, now)

    async def counted(self: Holder, *given: Any) -> Document | None:
        claims.append(self.name)
        return await claim(self, *given)

    monkeypatch.setattr(Holder, "claim", counted)
    monkeypatch.setattr(Holder, "may_claim", may)
    async with shared(tmp_path, Clock(), FakeServer(), FakeServer()) as (first, second):
        batch_id = await first.made(CONTENT)
        async with running(first), running(second):
            shown = await when_ended(second, batch_id)
        await assert_whole(second, tmp_path, shown)
    assert len(claims) > 3


async def test_changes_whose_answer_is_lost_only_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(22)
    async with shared(tmp_path, Clock(), FakeServer()) as (place,):
        batch_id = await place.made(CONTENT)
        documents = place.batches._documents
        write = documents.replace

        async def lossy(document: Document) -> bool:
            is_kept = await write(document)
            if choose.random() < 0.3:
                raise StoreUnavailable("the answer was lost")
            return is_kept

        monkeypatch.setattr(documents, "replace", lossy)
        async with running(place):
            shown = await when_ended(place, batch_id)
        monkeypatch.undo()
        await assert_whole(place, tmp_path, shown)


async def test_a_server_that_stops_lets_another_go_on_at_once(tmp_path: Path) -> None:
    gate = Gate(COUNT // 2)
    async with shared(tmp_path, Clock(), gate, FakeServer()) as (first, second):
        batch_id = await cut_off(first, gate, CONTENT)
        await first.batches.release()
        async with running(second):
            shown = await when_ended(second, batch_id)
        await assert_whole(second, tmp_path, shown)


async def test_a_claim_is_renewed_while_no_line_is_answered(tmp_path: Path) -> None:
    clock, gate = Clock(), Gate(0)
    async with shared(tmp_path, clock, gate, FakeServer()) as (first, _):
        batch_id = await first.made(CONTENT)
        async with running(first):
            await gate.closed.wait()
            before = await first.batches.get("", batch_id)
            clock.now += LEASE / 2
            while (after := await first.batches.get("", batch_id)) == before:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert after is not None
    assert after.held_until == BEGIN + LEASE * 3 / 2


async def test_a_batch_is_cancelled_at_a_server_that_does_not_run_it(tmp_path: Path) -> None:
    gate = Gate(10)
    async with shared(tmp_path, Clock(), gate, FakeServer()) as (first, second):
        batch_id = await second.made(CONTENT)
        async with running(first):
            await gate.closed.wait()
            state = await second.batches.cancel("", batch_id)
            assert state is not None
            assert state.status == "cancelling"
            shown = await when_ended(second, batch_id)
        assert shown["status"] == "cancelled"
        assert len(await second.lines(shown["output_file_id"])) == shown["request_counts"]["completed"] == 10


async def test_a_cancelled_batch_is_ended_by_another_server_when_its_output_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gate = Clock(), Gate(10)
    async with shared(tmp_path, clock, gate, FakeServer()) as (first, second):
        stands, goes_on = asyncio.Event(), asyncio.Event()

        async def stopping(*given: Any) -> None:
            stands.set()
            await goes_on.wait()
            raise StoreUnavailable("too late")

        batch_id = await first.made(CONTENT)
        monkeypatch.setattr(first.files, "keep", stopping)
        async with running(first):
            await gate.closed.wait()
            await second.batches.cancel("", batch_id)
            await stands.wait()
            stand_still(first)
            clock.now += LEASE + 1
            async with running(second):
                shown = await when_ended(second, batch_id)
            goes_on.set()
        assert shown["status"] == "cancelled"
        assert len(await second.lines(shown["output_file_id"])) == 10


async def test_uploads_of_other_servers_stay_unless_they_are_old(tmp_path: Path) -> None:
    clock = Clock()
    async with shared(tmp_path, clock, FakeServer(), FakeServer()) as (first, second):
        file_id = await first.files.begin("", "in.jsonl", "batch", 9)
        await second.files.open()
        await first.files.append("", file_id, memoryview(b"one line\n"))
        clock.now += 3600
        await second.files.open()
        with pytest.raises(InvalidRequest, match="not known"):
            await first.files.end("", file_id)
        assert await second.files.info("", file_id) is None


@pytest.mark.parametrize(
    ("holder", "seconds", "may"),
    [("", 50.0, True), ("me", 50.0, True), ("other", 50.0, False), ("other", -1.0, True), ("other", 3600.0, True)],
    ids=["free", "own", "held", "over", "from before the clock went back"],
)
async def test_what_may_be_claimed(tmp_path: Path, holder: str, seconds: float, may: bool) -> None:
    async with shared(tmp_path, Clock(), FakeServer()) as (place,):
        state = await place.batches.get("", await place.made(CONTENT))
    assert state is not None
    held = msgspec.structs.replace(state, holder=holder, held_until=BEGIN + seconds)
    assert Holder("me", LEASE).may_claim(held, BEGIN) is may
