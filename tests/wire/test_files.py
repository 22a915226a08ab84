"""Locks and rights of folders that others use too, and what is said where they are missing."""

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from wire.files import FOLDER, MADE, ReadByOthersError, check_owner, lock, locked, make_private, remedy


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_folder_of_this_user_alone(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "a" / "b"
    if is_there:
        folder.mkdir(mode=0o755, parents=True)
    make_private(folder)
    assert mode(folder) == 0o700


def test_a_folder_that_others_read_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    tmp_path.chmod(0o750)
    with pytest.raises(ReadByOthersError):
        make_private(tmp_path)
    assert mode(tmp_path) == 0o750
    tmp_path.chmod(0o700)
    make_private(tmp_path)


def test_one_at_a_time_or_those_who_share(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = lock(path)
    assert mode(path) == 0o600
    for is_shared in (False, True):
        with pytest.raises(BlockingIOError):
            lock(path, is_shared=is_shared)
    os.close(first)
    with locked(path), pytest.raises(BlockingIOError):
        lock(path)
    sharing = [lock(path, is_shared=True) for _ in range(2)]
    with pytest.raises(BlockingIOError), locked(path):
        pytest.fail("it was locked")
    for one in sharing:
        os.close(one)
    os.close(lock(path))


@pytest.mark.parametrize("what", ["folder", "file", "file that is replaced"])
def test_what_is_removed_before_it_is_locked(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    if what == "folder":
        path.mkdir()
    descriptors: list[int] = []

    def removed_meanwhile(descriptor: int, operation: int) -> None:
        descriptors.append(descriptor)
        path.rmdir() if what == "folder" else path.unlink()
        if what == "file that is replaced":
            path.touch()

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with pytest.raises(FileNotFoundError):
        lock(path, FOLDER if what == "folder" else MADE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])


def test_one_that_waits_gets_it_when_it_is_free(tmp_path: Path) -> None:
    first, got = lock(tmp_path / "lock"), threading.Event()

    def wait() -> None:
        os.close(lock(tmp_path / "lock", waits=True))
        got.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not got.wait(0.02)
    os.close(first)
    waiting.join(60)
    assert got.is_set()


@pytest.mark.parametrize("rights", [0o770, 0o707])
def test_a_folder_that_others_may_write_into(tmp_path: Path, rights: int) -> None:
    tmp_path.chmod(0o755)
    check_owner(tmp_path)
    tmp_path.chmod(rights)
    with pytest.raises(PermissionError, match="its group or everybody may write into it"):
        check_owner(tmp_path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_rights_name_the_user_and_both_ways_out(number: int) -> None:
    text = remedy(OSError(number, "Permission denied"))
    user = f"{os.geteuid()}:{os.getegid()}"
    assert text.startswith(f"; this process is user {user}: ")
    assert f"chown -R {user}" in text
    assert "--user $(id -u):$(id -g)" in text


def test_a_read_only_mount() -> None:
    assert "volume" in remedy(OSError(errno.EROFS, "Read-only file system"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOTDIR, errno.EFBIG, None])
def test_other_reasons_get_no_such_advice(number: int | None) -> None:
    assert remedy(OSError(number, "No space left on device")) == ""
