"""Files that are replaced, rewritten, removed and looked at no more often than once a second."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from server.settings.files import LOOK_SECONDS, WatchedFiles, version_of


class Clock:
    """Stands still until the test moves it on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def next_look(self) -> None:
        self.now += LOOK_SECONDS


def rewrite(file: Path) -> None:
    file.write_text("three")


def replace(file: Path) -> None:
    """By another of the same length and the same time."""
    other = file.with_name("other")
    other.write_text("two")
    found = file.stat()
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(file)


def swap_link(file: Path) -> None:
    """As Kubernetes does it for all files of a secret at once."""
    link, folder = file.parent / "data", file.parent / "2"
    folder.mkdir()
    (folder / "secret").write_text("two")
    (file.parent / "new").symlink_to(folder)
    (file.parent / "new").rename(link)


@pytest.mark.parametrize("change", [rewrite, replace, Path.unlink])
def test_a_change_is_told_once(tmp_path: Path, change: Callable[[Path], None]) -> None:
    clock, file = Clock(), tmp_path / "file"
    file.write_text("one")
    watched = WatchedFiles({str(file): version_of(str(file))}, clock=clock)
    assert not watched.have_changed()

    change(file)

    assert not watched.have_changed()  # it has looked just now
    clock.next_look()
    assert watched.have_changed()
    clock.next_look()
    assert not watched.have_changed()


def test_a_link_to_another_folder(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "data" / "secret"
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "secret").write_text("one")
    (tmp_path / "data").symlink_to(tmp_path / "1")
    watched = WatchedFiles({str(file): version_of(str(file))}, clock=clock)

    swap_link(tmp_path / "secret")

    assert watched.have_changed()


def test_what_has_changed_before_it_is_watched(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    version = version_of(str(file))
    rewrite(file)

    assert WatchedFiles({str(file): version}, clock=Clock()).have_changed()


def test_a_pipe_and_a_folder_have_no_version(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert [version_of(str(path)) for path in (tmp_path, tmp_path / "pipe", tmp_path / "none")] == [None] * 3
