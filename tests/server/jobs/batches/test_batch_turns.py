"""Batches beside each other: long ones leave turns to the others, and one that the server fails on ends."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.features.jobs.batches import batches as batches_module
from server.features.jobs.batches import lines as batch_lines
from server.features.jobs.batches import run as batch_run
from server.features.jobs.batches import run as slots_module
from server.features.jobs.batches.answers import LineAnswers
from server.features.jobs.batches.run import Slots
from server.features.jobs.gauges import Gauges
from server.features.jobs.http_client import HttpAnswer
from server.features.jobs.pace import Pace, SendQueue
from server.features.jobs.store.store import StoreFull, StoreLimits
from tests.batch_manager.peers import until
from tests.server.jobs.batches.fake_batches import (
    JSON,
    FakeServer,
    Place,
    ended,
    input_lines,
    joined,
    names,
    opened,
    ran,
    running,
    when_ended,
)
from wire.metrics import Recorder


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "TURN_SECONDS", 0.02)  # none at all would be too short for any line


class Paced(FakeServer):
    """Answers one line at a time, and no line of some owners, who are over their ceilings."""

    def __init__(self, *silent: str) -> None:
        super().__init__()
        self.silent = silent
        self.pace = Pace(1)

    async def ask(self, queue: SendQueue, route: str, body: bytes, request_id: str, **more: Any) -> HttpAnswer:
        while True:
            async with self.pace.turn(queue):
                if queue.owner in self.silent:
                    self.pace.refused(queue.owner, 30.0)
                    continue
                self.pace.answered(queue.owner)
                await asyncio.sleep(0.001)  # a long batch takes seconds
                return await super().ask(queue, route, body, request_id, **more)


@pytest.mark.parametrize("owners", ["aaaa", "aaaabbbb", "abcd", "eeee", "aaaaaaaaaaaae"])
@pytest.mark.holds("Fair shares")
async def test_a_batch_of_one_line_waits_for_no_long_one(tmp_path: Path, owners: str) -> None:
    """Neither for another key's nor for its own key's."""
    async with opened(tmp_path, server := Paced()) as place:
        long = [await place.made(joined(input_lines(3000)), owner=owner) for owner in owners]
        async with running(place):
            await until(lambda: len(server.asked) >= 20)
            short = await place.made(joined(input_lines(1)), owner="e")
            assert (await when_ended(place, short, "e"))["status"] == "completed"
            shown = [await place.batches.get(owner, batch_id) for owner, batch_id in zip(owners, long, strict=True)]
        assert all(state is not None and not state.has_ended for state in shown)


@pytest.mark.holds("Fair shares")
async def test_batches_of_keys_over_their_ceilings_hold_no_slot(tmp_path: Path) -> None:
    async with opened(tmp_path, Paced(*"abcdef")) as place:
        for owner in "abcdef" * 2:
            await place.made(joined(input_lines(100)), owner=owner)
        async with running(place):
            shown = await when_ended(place, await place.made(joined(input_lines(100)), owner="z"), "z")
    assert shown["request_counts"] == {"total": 100, "completed": 100, "failed": 0}


WithoutRoom = tuple[Place, list[str], str]


@pytest_asyncio.fixture
async def without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[WithoutRoom]:
    """Four batches of a key wait, as its files leave no room for their answers; and the file that takes most of it."""
    monkeypatch.setattr(batch_run, "COMMIT_BYTES", 1000)
    limits = StoreLimits(quota_bytes=400 << 10, key_share=0.5)
    async with opened(tmp_path, Paced(), limits=limits) as place:
        input_id = await place.uploaded(joined(input_lines(100)), "a")
        filler = await place.uploaded(bytes(110 << 10), "a")
        ids = [await place.made(b"", owner="a", input_id=input_id) for _ in range(4)]
        async with running(place):
            await until(lambda: all(f"{one} waits, as its output can't be kept" in caplog.text for one in ids))
            yield place, ids, filler


@pytest.mark.holds("Fair shares")
@pytest.mark.holds("Each line of a batch has exactly one line of output")
async def test_batches_of_a_key_without_room_hold_no_slot(without_room: WithoutRoom) -> None:
    place, ids, filler = without_room
    shown = await when_ended(place, await place.made(joined(input_lines(200)), owner="b"), "b")
    assert shown["request_counts"]["completed"] == 200
    await place.batches.delete_file("a", filler)
    for batch_id in ids:
        output_id = (await when_ended(place, batch_id, "a"))["output_file_id"]
        assert await place.custom_ids(output_id, "a") == names(100)


async def test_a_batch_without_room_ends_when_it_is_cancelled(without_room: WithoutRoom) -> None:
    place, ids, _ = without_room
    await place.batches.cancel("a", ids[0])
    assert (await when_ended(place, ids[0], "a"))["status"] == "cancelled"


async def test_a_batch_without_room_ends_with_its_window(
    without_room: WithoutRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, ids, _ = without_room
    monkeypatch.setattr(LineAnswers, "seconds_left", 0.0)
    shown = [await when_ended(place, batch_id, "a") for batch_id in ids]
    assert {one["status"] for one in shown} == {"expired"}
    codes = [one["errors"]["data"][0]["code"] for one in shown if one["errors"]]
    assert set(codes) == {"no_room"}, "where one has ended others may find room for a line of errors each"


@pytest.mark.holds("Each line of a batch has exactly one line of output")
async def test_batches_that_take_turns_have_one_line_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "MAX_RUNNING", 2)
    lines = input_lines(80)
    lines[60:63] = lines[0:3]  # names are repeated across turns
    async with opened(tmp_path, server := Paced()) as place:
        ids = [await place.made(joined(lines)) for _ in range(4)]
        async with running(place):
            for batch_id in ids:
                shown = await when_ended(place, batch_id)
                assert shown["request_counts"] == {"total": 80, "completed": 77, "failed": 3}
                numbers = [number for number in range(80) if number not in (60, 61, 62)]
                found = await place.custom_ids(shown["output_file_id"])
                assert found == [f"c{number}" for number in numbers]
                errors = await place.lines(shown["error_file_id"])
                assert [error["error"]["line"] for error in errors] == [61, 62, 63]
    first = [request_id.split("_")[2] for request_id in server.asked]
    assert sum(one != other for one, other in itertools.pairwise(first)) > 4, "they were interleaved"


async def test_a_line_that_fails_again_and_again_ends_although_others_wait(tmp_path: Path) -> None:
    """Else its attempts would begin anew in each turn."""

    class Failing(Paced):
        async def ask(self, queue: SendQueue, route: str, body: bytes, request_id: str, **more: Any) -> HttpAnswer:
            for attempt in range(3):
                async with self.pace.turn(queue, has_begun=attempt > 0):
                    await asyncio.sleep(0.001)
            return HttpAnswer(500, JSON, b"{}")

    async with opened(tmp_path, Failing()) as place:
        ids = [await place.made(joined(input_lines(5))) for _ in range(9)]
        async with running(place):
            for batch_id in ids:
                assert (await when_ended(place, batch_id))["request_counts"]["failed"] == 5


async def test_a_key_with_many_batches_leaves_room_for_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "MAX_OPEN", 16)
    monkeypatch.setattr(batches_module, "_MAX_OPEN_OF_ONE", 4)
    async with opened(tmp_path, FakeServer()) as place:
        file_ids = {owner: await place.uploaded(b"{}", owner) for owner in "abcdez"}
        made = dict.fromkeys("abcde", 0)
        for owner in "abcde" * 5:
            with suppress(StoreFull):
                await place.made(b"", owner=owner, input_id=file_ids[owner])
                made[owner] += 1
        assert all(made.values())
        await place.made(b"", owner="z", input_id=file_ids["z"])


@pytest.mark.parametrize("content", [b"\n" * (1 << 20) + b"{}", b"{}\n" * 20_000, b"x" * (1 << 20)], ids=[0, 1, 2])
async def test_a_scan_ends_with_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(batch_lines, "_SLICE_BYTES", 1 << 16)
    monkeypatch.setattr(batch_lines, "MAX_LINE_BYTES", 1 << 16)
    looks: list[int] = []

    def stops() -> bool:
        looks.append(1)
        return len(looks) == 3

    (tmp_path / "in").write_bytes(content)
    found = batch_lines.scan(tmp_path / "in", stops)
    assert len(looks) == 3
    assert found is not None
    assert found.total < 20_000


async def test_blank_lines_are_passed_over_together(tmp_path: Path) -> None:
    """A file of nothing else took as long as one of as many lines, and nobody could stop it."""
    lines = [b"\n" * 200_000, b" \t\r\n" * 1000, b'{"a": 1}', b"\n" * 70_000, b"  ", b"last"]
    (tmp_path / "in").write_bytes(joined(lines))
    with BufferedReader(FileIO(tmp_path / "in"), 1 << 16) as file:
        file.readline()
        assert batch_lines._skip_blank_lines(file) == (1 << 16) - 1
    found = [(line.number, line.content) for line in batch_lines.lines_of(tmp_path / "in") if line is not None]
    assert found == [(201_003, b'{"a": 1}\n'), (271_006, b"last\n")]


async def test_a_batch_is_cancelled_while_it_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans = asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(path: Path, stops: Any) -> batch_lines.Scan:
        loop.call_soon_threadsafe(scans.set)
        while not stops():
            pass
        return batch_lines.Scan(0)

    monkeypatch.setattr(batch_run, "scan", endless)
    async with opened(tmp_path, FakeServer()) as place:
        batch_id = await place.made(joined(input_lines(3)))
        async with running(place):
            await scans.wait()
            await place.batches.cancel("", batch_id)
            assert (await when_ended(place, batch_id))["status"] == "cancelled"


@pytest.mark.parametrize("answered", [0, 10])
async def test_a_batch_that_the_server_fails_on_ends_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """With what was answered before, and a metric tells."""
    monkeypatch.setattr(batch_run, "COMMIT_SECONDS", 0.0)
    request_of = batch_lines.request_of

    def broken(line: batch_lines.Line, endpoint: str) -> object:
        if line.number > answered:
            raise RuntimeError("a bug")
        return request_of(line, endpoint)

    monkeypatch.setattr("server.features.jobs.batches.answers.request_of", broken)
    metrics = Recorder()
    async with opened(tmp_path, FakeServer()) as place:
        place.batches._saved = Gauges(place.store, metrics, title="jobs 0").saved
        shown = await ended(place, await place.made(joined(input_lines(30))))
        found = await place.custom_ids(shown["output_file_id"])
    assert (shown["status"], [error["code"] for error in shown["errors"]["data"]]) == ("failed", ["server_error"])
    assert found == names(answered)
    assert ["embedline_jobs_batch_faults_total", 1] in metrics.drain()["counts"]


async def test_one_that_fails_for_a_while_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan, faults = batch_lines.scan, iter([RuntimeError("a bug")] * 2)

    def broken(path: Path, stops: Any) -> object:
        for fault in faults:
            raise fault
        return scan(path, stops)

    monkeypatch.setattr(batch_run, "scan", broken)
    assert (await ran(tmp_path, joined(input_lines(30)))).counts == (30, 30, 0)


async def test_one_that_fails_behind_its_window_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Path] = []

    def broken(path: Path, stops: Any) -> object:
        tries.append(path)
        raise RuntimeError("a bug")

    monkeypatch.setattr(batch_run, "scan", broken)
    async with opened(tmp_path, FakeServer()) as place:
        batch_id = await place.made(joined(input_lines(30)))
        place.batches._clock = lambda: 4e9
        assert (await ended(place, batch_id))["status"] == "failed"
    assert len(tries) == 1


async def test_a_slot_goes_to_the_owner_with_fewest() -> None:
    slots, order, opens = Slots(2), list[str](), asyncio.Event()

    async def hold(owner: str) -> None:
        async with slots.turn(SendQueue(owner)):
            order.append(owner)
            await opens.wait()

    tasks = [asyncio.create_task(hold(owner)) for owner in "aaaabbc"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["a", "a"]
    opens.set()
    await asyncio.gather(*tasks)
    assert "".join(order) == "aabcaba"
