"""What operators see and remove of a key, at a running server."""

import asyncio
from pathlib import Path

import pytest

from server.features.jobs import command as command
from server.features.jobs.disk import Folder
from server.settings.flag import SettingsError
from tests.server.jobs.batches.fake_batches import FakeServer, ended, input_lines, joined, opened
from tests.server.jobs.connected import connected
from tests.server.jobs.store.stores import ended as request_ended


async def test_what_a_key_holds_is_shown_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = Folder(str(tmp_path / "jobs"))
    async with opened(tmp_path / "jobs", FakeServer()) as place, connected(tmp_path, place.calls()):
        jobs.note_socket(str(tmp_path / "jobs.sock"))
        await ended(place, await place.made(joined(input_lines(3))))
        await place.made(joined(input_lines(3)), owner="anna")
        await place.uploaded(b"more", "anna")
        await request_ended(place.store, owner="anna")
        await asyncio.to_thread(command.held, jobs=str(tmp_path / "jobs"))
        await asyncio.to_thread(command.remove, "anna", jobs=str(tmp_path / "jobs"))
        await asyncio.to_thread(command.remove, "-", jobs=str(tmp_path / "jobs"))
        assert list(await place.requests.holders()) == ["anna"]
        assert len(await place.files.newest("anna", after=None, limit=9)) == 1  # an open batch needs it
    jobs.close()
    first, second, quota, of_anna, of_nobody = capsys.readouterr().out.splitlines()
    assert {first.split()[1], second.split()[1]} == {"anna", "-"}
    assert quota.split()[1] == "--jobs-quota"
    assert of_anna.startswith("removed results, 1 files and 0 batches; ")
    assert of_nobody == "removed results, 2 files and 1 batches; 0 bytes are left"


def test_a_folder_that_no_server_has_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no server of this machine has this folder"):
        command.held(jobs=str(tmp_path))
