"""Copies beside other processes, and in a cache that may only be read."""

import os
import shutil
from pathlib import Path

import pytest

from engine.store import copies


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


@pytest.mark.parametrize("has_lock", [True, False])
def test_those_who_may_only_read_share_the_lock_and_make_none(
    copy: Path, has_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = copy.with_name("mine.lock")
    if has_lock:
        lock.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with copies.locked(copy, "the copy"), copies.locked(copy, "the copy"):  # the second one does not wait
        pass
    assert lock.exists() == has_lock


def test_a_copy_that_another_process_removes_meanwhile(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [copy.with_name(f"other {number}") for number in range(2)]
    for other in others:
        other.mkdir()
    is_dir = Path.is_dir

    def is_dir_for_the_last_time(path: Path) -> bool:
        found = is_dir(path)
        if path == others[0]:
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir_for_the_last_time)
    copies.make_way(copy, most_others=0)
    assert not any(is_dir(folder) for folder in (copy, *others))
