"""Files that lie in an object store: whole there, and in the folder only while they are written or read as an input."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from server.features.jobs import files as files_module
from server.features.jobs.batches import answers
from server.features.jobs.batches import run as batch_run
from server.features.jobs.files import Objects
from server.features.jobs.store.store import StoreUnavailable, StoreUnusable
from server.features.jobs.types import Document
from tests.batch_manager.peers import until
from tests.server.jobs.batches.fake_batches import (
    FakeServer,
    Gate,
    Place,
    cut_off,
    ended,
    input_lines,
    joined,
    names,
    opened,
    raising,
    running,
    when_ended,
)

URL = "memory://bucket/jobs"
CONTENT = joined([*input_lines(120), b"broken"])


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()


def kept() -> set[str]:
    return {path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/bucket/jobs")}


async def assert_whole(place: Place, folder: Path, batch_id: str) -> None:
    """All of the batch's files are objects, and nothing is left in the folder."""
    shown = await ended(place, batch_id)
    assert shown["status"] == "completed"
    found = await place.custom_ids(shown["output_file_id"])
    assert found == names(120)
    (error,) = await place.lines(shown["error_file_id"])
    assert error["error"]["line"] == 121
    assert kept() == {shown["input_file_id"], shown["output_file_id"], shown["error_file_id"]}
    assert list((folder / "files").iterdir()) == []


async def test_a_batch_reads_and_leaves_objects(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer(), Objects(URL)) as place:
        input_id = await place.uploaded(CONTENT)
        assert await place.files.read("", input_id, 5, 100) == CONTENT[5:105]
        assert await place.files.read("", input_id, len(CONTENT), 100) == b""
        batch_id = await place.made(b"", input_id=input_id)
        await assert_whole(place, tmp_path, batch_id)
        for file_id in kept():
            assert await place.batches.delete_file("", file_id)
            assert await place.files.read("", file_id, 0, 1) is None
    assert kept() == set()


async def test_a_batch_that_was_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "COMMIT_SECONDS", 0.0)
    gate = Gate(60)
    async with opened(tmp_path, gate, Objects(URL)) as place:
        batch_id = await cut_off(place, gate, CONTENT)
    async with opened(tmp_path, FakeServer(), Objects(URL)) as place:
        await assert_whole(place, tmp_path, batch_id)


async def test_a_store_that_is_away_only_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects(URL)
    async with opened(tmp_path, FakeServer(), objects) as place:
        batch_id = await place.made(CONTENT)
        filesystem = objects._filesystem
        failures = iter([ConnectionError("no")] * 3 + [PermissionError("no")])
        for name in ("put_file", "get_file"):

            def away(*given: str, once: object = getattr(filesystem, name)) -> object:
                for failure in failures:
                    raise failure
                assert callable(once)
                return once(*given)

            monkeypatch.setattr(filesystem, name, away)
        await assert_whole(place, tmp_path, batch_id)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ConnectionError("a text of the store"), "ConnectionError"),
        (FileNotFoundError("The specified bucket does not exist"), "the bucket or folder is gone"),
    ],
)
async def test_an_upload_is_there_only_if_the_store_has_it(
    error: OSError, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(URL)
    async with opened(tmp_path, FakeServer(), objects) as place:
        monkeypatch.setattr(objects._filesystem, "put_file", raising(error))
        with pytest.raises(StoreUnavailable, match=f"^--jobs-files does not do it: {problem}$"):
            await place.uploaded(CONTENT)
        assert await place.files.newest("", after=None, limit=9) == []


async def test_an_output_whose_end_the_store_did_not_answer_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, FakeServer(), Objects(URL)) as place:
        batch_id = await place.made(CONTENT)
        put, unanswered = place.files._documents.put, [True, True]

        async def put_unanswered(document: Document, *, needs: int | None = None) -> None:
            await put(document, needs=needs)
            if unanswered:
                raise StoreUnavailable(f"no answer {unanswered.pop()}")

        monkeypatch.setattr(place.files._documents, "put", put_unanswered)
        await assert_whole(place, tmp_path, batch_id)


async def test_a_store_that_is_away_says_nothing_of_what_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(URL)
    fsspec.filesystem("memory").pipe_file("/bucket/jobs/file-1", b"kept")
    assert await objects.exists("file-1")
    assert not await objects.exists("file-2")
    monkeypatch.setattr(objects._filesystem, "info", raising(ConnectionError("no")))
    with pytest.raises(StoreUnavailable):
        await objects.exists("file-1")


async def test_servers_that_start_together_try_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = fsspec.filesystem("memory")

    def removed_by_both(path: str, once: Callable[[str], None] = filesystem.rm_file) -> None:
        once(path)
        once(path)

    monkeypatch.setattr(filesystem, "rm_file", removed_by_both)
    Objects(URL).check()
    assert kept() == set()


async def test_an_input_that_is_gone_fails_the_batch_when_its_window_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers.LineAnswers, "seconds_left", 0.0)
    async with opened(tmp_path, FakeServer(), Objects(URL)) as place:
        batch_id = await place.made(CONTENT)
        fsspec.filesystem("memory").store.clear()
        shown = await ended(place, batch_id)
    assert [error["code"] for error in shown["errors"]["data"]] == ["input_file_gone"]


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_batch_whose_store_is_away_ends_when_it_is_cancelled_or_its_window_is_over(
    cancels: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    objects = Objects(URL)
    async with opened(tmp_path, FakeServer(), objects) as place:
        batch_id = await place.made(CONTENT)
        monkeypatch.setattr(objects._filesystem, "get_file", raising(ConnectionError("no")))
        async with running(place):
            await until(lambda: "its input can't be copied" in caplog.text)
            if cancels:
                await place.batches.cancel("", batch_id)
            else:
                monkeypatch.setattr(answers.LineAnswers, "seconds_left", 0.0)
            shown = await when_ended(place, batch_id)
    assert (shown["status"], bool(shown["errors"])) == (("cancelled", False) if cancels else ("failed", True))
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("url", ["nonsense://bucket", "hf://datasets/none"])
async def test_a_place_where_nothing_can_be_written_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StoreUnusable, match=r"^--jobs-files can't be written: "):
        Objects(url).check()


async def test_what_a_store_that_is_away_keeps_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "RETRY_PAUSE", 0.0)
    objects = Objects(URL)
    failures = iter([ConnectionError("no")] * 4)

    def away(key: str, once: Callable[[str], None] = objects._filesystem.rm_file) -> None:
        for failure in failures:
            raise failure
        once(key)

    async with opened(tmp_path, FakeServer(), objects) as place:
        deleted = await place.uploaded(CONTENT)
        abandoned = await place.files.begin("", "in.jsonl", "batch", 100)
        monkeypatch.setattr(objects._filesystem, "rm_file", away)
        await place.files.abandon("", abandoned)
        assert await place.batches.delete_file("", deleted)
        assert await place.files.info("", deleted) is None
        assert list((tmp_path / "files").iterdir()) == []
        assert kept() == {deleted}
        async with asyncio.TaskGroup() as group:
            running = group.create_task(place.files.run())
            await until(lambda: not {deleted, abandoned} & place.files._removed.keys())
            running.cancel()
        assert kept() == set()
        assert await place.files._documents.held("", "file") == (0, 0)


async def test_a_store_that_hangs_delays_only_what_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "AT_ONCE_SECONDS", 0.0)
    objects = Objects(URL)
    goes_on = threading.Event()
    (tmp_path / "objects").mkdir()
    monkeypatch.setattr(objects._filesystem, "put_file", lambda *_: goes_on.wait())
    monkeypatch.setattr(objects._filesystem, "rm_file", lambda *_: goes_on.wait())
    async with opened(tmp_path, FakeServer()) as place, opened(tmp_path / "objects", FakeServer(), objects) as hanging:
        ends = []
        for _ in range(40):  # more than asyncio has threads
            file_id = await hanging.files.begin("", "in.jsonl", "batch", 0)
            ends.append(asyncio.create_task(hanging.files.end("", file_id)))
        await asyncio.sleep(0)
        abandoned = await hanging.files.begin("", "in.jsonl", "batch", 100)
        await hanging.files.abandon("", abandoned)
        assert (await ended(place, await place.made(CONTENT)))["status"] == "completed"
        goes_on.set()
        await asyncio.gather(*ends)
