"""The folder of --jobs is private and one server's."""

import asyncio
from pathlib import Path

import pytest

from server.features.jobs import disk as folder_module
from server.features.jobs.disk import Folder, FolderTaken, opened
from server.settings.flag import SettingsError


def test_a_folder_that_others_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a" / "theirs").touch()
    with pytest.raises(SettingsError, match=f"--jobs: other users can read {tmp_path}"):
        Folder(str(tmp_path / "a"))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(SettingsError, match="--jobs: the folder can't be used"):
        Folder(str(tmp_path / "a"))


def test_a_second_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_LET_GO_SECONDS", 0.0)
    first = Folder(str(tmp_path))
    with pytest.raises(FolderTaken, match="--jobs: another server uses this folder"):
        asyncio.run(opened(str(tmp_path), waits=False))
    first.close()
    asyncio.run(opened(str(tmp_path), waits=False)).close()


async def test_a_successor_waits_until_it_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_LET_GO_SECONDS", 0.0)
    monkeypatch.setattr(folder_module, "_LOOK_SECONDS", 0.001)
    first = Folder(str(tmp_path))
    waiting = asyncio.create_task(opened(str(tmp_path), waits=True))
    await asyncio.wait([waiting], timeout=0.02)
    assert not waiting.done()
    first.close()
    (await waiting).close()


def test_those_that_share_it_keep_others_out(tmp_path: Path) -> None:
    first, second = (Folder(str(tmp_path / "a"), is_shared=True) for _ in range(2))
    first.close()
    with pytest.raises(FolderTaken):
        Folder(str(tmp_path / "a"))
    second.close()
    Folder(str(tmp_path / "a")).close()


def test_servers_that_share_a_folder_know_it_by_one_id(tmp_path: Path) -> None:
    first, second = (Folder(str(tmp_path / "a"), is_shared=True) for _ in range(2))
    other = Folder(str(tmp_path / "b"), is_shared=True)
    ids = [one.shared_id() for one in (first, second, other, first)]
    for one in (first, second, other):
        one.close()
    assert ids[0] == ids[1] == ids[3] != ids[2]
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"lock", "shared-id"}


def test_another_place_for_its_files_is_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    for url in ("s3://bucket/files", "s3://bucket/files/", "s3://key:secret@bucket/files"):
        folder.check_files(url)
    for other in (None, "s3://bucket/others"):
        with pytest.raises(
            SettingsError, match="--jobs-files: the files of this folder of --jobs lie at s3://bucket/files"
        ):
            folder.check_files(other)
    (tmp_path / "files-at").unlink()
    folder.check_files(None)
    with pytest.raises(SettingsError, match="lie in it: "):
        folder.check_files("s3://bucket/files")
    folder.close()
