"""Uploads: their bounds, and what becomes of those that never end."""

from pathlib import Path

import pytest

from server.jobs import files as files_module
from server.jobs.files import FileProblem, TooManyUploads
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
            await place.files.begin("other", "in.jsonl", "batch", 3)
        monkeypatch.setattr(files_module, "_IDLE_SECONDS", -1.0)
        await place.files.begin("other", "in.jsonl", "batch", 3)
        with pytest.raises(FileProblem, match="not known"):
            await place.files.append("", first, memoryview(b"one"))
