"""Uploads: their bounds, and what becomes of those that never end."""

import asyncio
from pathlib import Path

import pytest

from server.features.jobs import files as files_module
from server.features.jobs.batches import run as batch_run
from server.features.jobs.store.store import StoreFull, StoreLimits
from server.features.jobs.types import Document
from server.requests.errors import InvalidRequest
from tests.batch_manager.peers import until
from tests.server.jobs.batches.fake_batches import FakeServer, input_lines, joined, opened, running, when_ended

MIB = 1 << 20


async def test_an_upload_has_at_most_what_it_announced(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        file_id = await place.files.begin("", "in.jsonl", "batch", 3)
        with pytest.raises(InvalidRequest, match="more bytes than were announced"):
            await place.files.append("", file_id, memoryview(b"four"))
        assert await place.files.info("", file_id) is None
        await place.files.abandon("", file_id)
        assert not list((tmp_path / "files").iterdir())
        with pytest.raises(InvalidRequest, match="not known"):
            await place.files.end("", file_id)


async def test_uploads_under_way_are_bounded_and_idle_ones_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_MAX_UPLOADS", 1)
    async with opened(tmp_path, FakeServer()) as place:
        first = await place.files.begin("", "in.jsonl", "batch", 3)
        with pytest.raises(StoreFull):
            await place.files.begin("", "in.jsonl", "batch", 3)
        await place.files.begin("other", "in.jsonl", "batch", 3)  # nobody can take another's place
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)
        await place.files.begin("", "in.jsonl", "batch", 3)
        with pytest.raises(InvalidRequest, match="not known"):
            await place.files.append("", first, memoryview(b"one"))


async def test_uploads_that_begin_together_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_MAX_UPLOADS", 2)
    async with opened(tmp_path, FakeServer()) as place:

        async def begin() -> list[str | BaseException]:
            begun = [place.files.begin("", "in.jsonl", "batch", 3) for _ in range(5)]
            return await asyncio.gather(*begun, return_exceptions=True)

        assert [type(one) for one in await begin()] == [str, str, *[StoreFull] * 3]
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)  # each of these drops what it finds
        assert [type(one) for one in await begin()] == [str] * 5


async def test_an_upload_that_ends_while_others_are_dropped_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        _, second = [await place.files.begin("", "in.jsonl", "batch", 3) for _ in range(2)]
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)
        remove = place.files.remove

        async def remove_slowly(document: Document) -> None:
            if second in place.files._uploads:
                await place.files.end("", second)
            await remove(document)

        monkeypatch.setattr(place.files, "remove", remove_slowly)
        await place.files.begin("", "in.jsonl", "batch", 3)
        assert await place.files.info("", second) is not None


async def test_an_upload_holds_the_room_of_what_has_come(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer(), limits=StoreLimits(quota_bytes=40 * MIB)) as place:
        first = await place.files.begin("anna", "in.jsonl", "batch", 30 * MIB)
        second = await place.files.begin("bert", "in.jsonl", "batch", 30 * MIB)
        for _ in range(12):
            await place.files.append("anna", first, memoryview(bytes(MIB)))
        with pytest.raises(StoreFull):
            await place.files.begin("bert", "in.jsonl", "batch", 30 * MIB)
        for _ in range(24):
            await place.files.append("bert", second, memoryview(bytes(MIB)))
        with pytest.raises(StoreFull):
            await place.files.append("anna", first, memoryview(bytes(6 * MIB)))
        await place.files.end("bert", second)
        await place.files.abandon("anna", first)
        assert (await place.documents.held("anna", "file"), await place.documents.held("bert", "file")) == (
            (0, 0),
            (1, 24 * MIB),
        )


async def test_an_upload_that_could_find_no_room_is_refused_before_its_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer(), limits=StoreLimits(quota_bytes=40 * MIB, key_share=0.5)) as place:
        with pytest.raises(StoreFull, match="key"):
            await place.files.begin("anna", "in.jsonl", "batch", 21 * MIB)
        await place.files.begin("", "in.jsonl", "batch", 21 * MIB)


async def test_what_tiny_files_take_of_the_disk_is_counted(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        for _ in range(100):
            await place.uploaded(b"1", "anna")
        counted = (await place.requests.counts(None)).held_bytes
    assert _taken(tmp_path) < 1.25 * counted


def _taken(folder: Path) -> int:
    """Bytes of the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


async def test_outputs_find_room_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_run, "COMMIT_BYTES", 0)
    limits = StoreLimits(quota_bytes=128 << 10)
    async with opened(tmp_path, FakeServer(), limits=limits) as place:
        other = await place.uploaded(bytes(60 << 10))
        batch_id = await place.made(joined(input_lines(300)))
        async with running(place):
            await until(lambda: "its output can't be kept" in caplog.text)
            assert _taken(tmp_path / "files") <= limits.quota_bytes
            assert (await place.requests.counts(None)).held_bytes <= limits.quota_bytes
            assert await place.batches.delete_file("", other)
            assert (await when_ended(place, batch_id))["request_counts"]["completed"] == 300
            assert (await place.requests.counts(None)).held_bytes <= limits.quota_bytes
