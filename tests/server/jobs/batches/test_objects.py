"""Files that lie in an object store: whole there, and in the folder only while they are written or read as an input."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import fsspec
import pytest

from server.jobs import files as files_module
from server.jobs.batches import batches as batches_module
from server.jobs.batches import run as batch_run
from server.jobs.store.errors import StoreUnavailable, StoreUnusable
from server.jobs.store.objects import Objects
from server.jobs.types import Document
from tests.server.jobs.batches.fake_batches import FakeServer, Gate, Place, ended, input_lines, joined, opened

pytestmark = pytest.mark.asyncio
URL = "memory://bucket/jobs"
CONTENT = joined([*input_lines(300), b"broken"])


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
    found = await place.lines(shown["output_file_id"])
    assert [line["custom_id"] for line in found] == [f"c{number}" for number in range(300)]
    (error,) = await place.lines(shown["error_file_id"])
    assert error["error"]["line"] == 301
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
    gate = Gate(150)
    async with opened(tmp_path, gate, Objects(URL)) as place:
        batch_id = await place.made(CONTENT)
        running = asyncio.create_task(place.batches.run())
        await gate.closed.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    async with opened(tmp_path, FakeServer(), Objects(URL)) as place:
        await assert_whole(place, tmp_path, batch_id)


async def test_a_store_that_is_away_only_delays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "FULL_PAUSE", 0.0)
    monkeypatch.setattr(batches_module, "RETRY_PAUSE", 0.0)
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


async def test_an_upload_is_there_only_if_the_store_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects(URL)

    def away(*_: object) -> None:
        raise ConnectionError("a text of the store")

    async with opened(tmp_path, FakeServer(), objects) as place:
        monkeypatch.setattr(objects._filesystem, "put_file", away)
        with pytest.raises(StoreUnavailable, match=r"^--jobs-files does not do it: ConnectionError$"):
            await place.uploaded(CONTENT)
        assert await place.files.newest("", after=None, limit=9) == []


async def test_an_upload_that_fails_while_the_store_is_away_keeps_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(URL)

    def away(*_: object) -> None:
        raise ConnectionError("no")

    async with opened(tmp_path, FakeServer(), objects) as place:
        file_id = await place.files.begin("", "in.jsonl", "batch", len(CONTENT))
        await place.files.append("", file_id, memoryview(CONTENT))
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(objects._filesystem, "rm_file", away)
            with pytest.raises(StoreUnavailable):
                await place.files.abandon("", file_id)
        assert list((tmp_path / "files").iterdir()) == []
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)  # of the clock that the file was made by
        await place.files.begin("", "in.jsonl", "batch", 3)
        assert await place.files._documents.held("", "file") == (1, 3)


async def test_an_output_whose_end_the_store_did_not_answer_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "FULL_PAUSE", 0.0)
    async with opened(tmp_path, FakeServer(), Objects(URL)) as place:
        batch_id = await place.made(CONTENT)
        put, unanswered = place.files._documents.put, [True, True]

        async def put_unanswered(document: Document) -> None:
            await put(document)
            if unanswered:
                raise StoreUnavailable(f"no answer {unanswered.pop()}")

        monkeypatch.setattr(place.files._documents, "put", put_unanswered)
        await assert_whole(place, tmp_path, batch_id)


async def test_a_store_that_is_away_says_nothing_of_what_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects(URL)
    fsspec.filesystem("memory").pipe_file("/bucket/jobs/file-1", b"kept")
    assert objects.exists("file-1")
    assert not objects.exists("file-2")

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("no")

    monkeypatch.setattr(objects._filesystem, "info", away)
    with pytest.raises(StoreUnavailable):
        objects.exists("file-1")


async def test_servers_that_start_together_try_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = fsspec.filesystem("memory")

    def removed_by_both(path: str, once: Callable[[str], None] = filesystem.rm_file) -> None:
        once(path)
        once(path)

    monkeypatch.setattr(filesystem, "rm_file", removed_by_both)
    Objects(URL)
    assert kept() == set()


async def test_an_input_that_is_gone_fails_the_batch(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer(), Objects(URL)) as place:
        batch_id = await place.made(CONTENT)
        fsspec.filesystem("memory").store.clear()
        shown = await ended(place, batch_id)
    assert [error["code"] for error in shown["errors"]["data"]] == ["input_file_gone"]


@pytest.mark.parametrize("url", ["nonsense://bucket", "hf://datasets/none"])
async def test_a_place_where_nothing_can_be_written_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StoreUnusable, match=r"^--jobs-files can't be written: "):
        Objects(url)
