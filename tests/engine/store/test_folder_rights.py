"""What is said of a folder that can't be written to."""

import errno
import os

import pytest

from engine.store.folder_rights import remedy
from engine.store.hub import _why


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


def test_a_download_into_somebody_elses_folder() -> None:
    message = _why(PermissionError(errno.EACCES, "Permission denied", "/data/models--a--b"), "a/b", None)
    assert message.startswith("--huggingface-hub-cache can't take the files of 'a/b': [Errno 13] Permission denied")
    assert message.endswith("(docker run --user $(id -u):$(id -g))")
