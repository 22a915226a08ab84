"""Uploads: their bounds, and what becomes of those that never end."""

import asyncio
from pathlib import Path

import pytest

from server.jobs import files as files_module
from server.jobs.files import FileProblem, TooManyUploads
from server.jobs.store.errors import StoreFull
from server.jobs.types import Document
from tests.server.jobs.batches.fake_batches import FakeServer, opened

pytestmark = pytest.mark.asyncio


async def test_an_upload_has_at_most_what_it_announced(tmp_path: Path) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        file_id = await place.files.begin("", "in.jsonl", "batch", 3)
        with pytest.raises(FileProblem, match="more bytes than were announced"):
            await place.files.append("", file_id, memoryview(b"four"))
        assert await place.files.info("", file_id) is None
        await place.files.abandon("", file_id)
        assert not list((tmp_path / "files").iterdir())
        with pytest.raises(FileProblem, match="not known"):
            await place.files.end("", file_id)


async def test_uploads_under_way_are_bounded_and_idle_ones_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_MAX_UPLOADS", 1)
    async with opened(tmp_path, FakeServer()) as place:
        first = await place.files.begin("", "in.jsonl", "batch", 3)
        with pytest.raises(TooManyUploads):
            await place.files.begin("", "in.jsonl", "batch", 3)
        await place.files.begin("other", "in.jsonl", "batch", 3)  # nobody can take another's place
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)
        await place.files.begin("", "in.jsonl", "batch", 3)
        with pytest.raises(FileProblem, match="not known"):
            await place.files.append("", first, memoryview(b"one"))


async def test_uploads_that_begin_together_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_MAX_UPLOADS", 2)
    async with opened(tmp_path, FakeServer()) as place:

        async def begin() -> list[str | BaseException]:
            begun = [place.files.begin("", "in.jsonl", "batch", 3) for _ in range(5)]
            return await asyncio.gather(*begun, return_exceptions=True)

        assert [type(one) for one in await begin()] == [str, str, *[TooManyUploads] * 3]
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)  # each of these drops what it finds
        assert [type(one) for one in await begin()] == [str] * 5


async def test_an_upload_that_ends_while_others_are_dropped_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, FakeServer()) as place:
        _, second = [await place.files.begin("", "in.jsonl", "batch", 3) for _ in range(2)]
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)
        remove = place.files.removal.remove

        async def remove_slowly(document: Document) -> None:
            if second in place.files._uploads:
                await place.files.end("", second)
            await remove(document)

        monkeypatch.setattr(place.files.removal, "remove", remove_slowly)
        await place.files.begin("", "in.jsonl", "batch", 3)
        assert await place.files.info("", second) is not None


@pytest.mark.holds("Every bound")
async def test_an_upload_reserves_as_its_bytes_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_RESERVED_BYTES", 1000)

    async def held(owner: str) -> int:
        return (await place.files._documents.held(owner, files_module.KIND))[1]

    async with opened(tmp_path, FakeServer()) as place:
        file_id = await place.files.begin("", "in.jsonl", "batch", 1 << 60)
        assert await held("") == 1000
        for come in (1000, 1001):
            await place.files.append("", file_id, memoryview(bytes(come)))
        assert await held("") == 2 * 2001
        info = await place.files.end("", file_id)
        assert (info.bytes, await held("")) == (2001, 2001)


@pytest.mark.holds("Every bound")
async def test_where_there_is_no_room_ahead_an_upload_takes_just_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_RESERVED_BYTES", 1000)
    async with opened(tmp_path, FakeServer()) as place:
        replace_any, refused = place.files._documents.replace, list[int]()

        async def replace(document: Document) -> bool:
            if document.held_bytes > 3000:
                refused.append(document.held_bytes)
                raise StoreFull("full")
            return await replace_any(document)

        monkeypatch.setattr(place.files._documents, "replace", replace)
        file_id = await place.files.begin("", "in.jsonl", "batch", 4000)
        await place.files.append("", file_id, memoryview(bytes(3000)))
        assert refused == [4000]
        with pytest.raises(StoreFull):
            await place.files.append("", file_id, memoryview(bytes(1)))
        assert (await place.files.end("", file_id)).bytes == 3000
