"""What a process that was killed left of a model that it made: the next start removes it, and nothing of live ones."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.store.cache import Cache

_MAKER = """
import sys
from pathlib import Path
from engine.store.cache import Cache
with Cache(Path(sys.argv[1])).new_folder() as folder:
    (folder / "half").write_bytes(bytes(9))
    print(folder.name, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is making an entry in `tmp_path`, and has said in which folder."""
    command = [sys.executable, "-P", "-c", _MAKER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(maker: "subprocess.Popen[str]") -> str:
    assert maker.stdout is not None
    return maker.stdout.readline().strip()


@pytest.mark.holds("Engines on a CPU")
def test_the_next_start_removes_what_a_killed_one_left(tmp_path: Path, maker: "subprocess.Popen[str]") -> None:
    left = tmp_path / said(maker)
    Cache(tmp_path).find("a key")
    assert (left / "half").exists()  # its maker lives
    maker.kill()
    maker.wait()
    Cache(tmp_path).find("a key")
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_that_another_start_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed between being made and being locked."""
    lock = fcntl.flock
    removed: list[Path] = []

    def flock(descriptor: int, operation: int) -> None:
        if not removed:
            removed.extend(tmp_path.glob(".new-*"))
            removed[0].rmdir()
        lock(descriptor, operation)

    cache = Cache(tmp_path)
    monkeypatch.setattr(fcntl, "flock", flock)
    with cache.new_folder() as folder:
        assert folder.is_dir()
        assert [folder] != removed


def test_without_locks_a_day_tells_whether_the_maker_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    old = tmp_path / ".new-old"
    old.mkdir()
    os.utime(old, (0, 0))
    with Cache(tmp_path).new_folder() as folder:
        Cache(tmp_path).find("a key")
        assert list(tmp_path.iterdir()) == [folder]
