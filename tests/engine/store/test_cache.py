"""The cache of compiled models: how many are kept, where one is made when its disk is full, and what a process that was
killed left of one: the next start removes it, and nothing of live ones."""

import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.store import manifest
from engine.store.cache import Cache
from engine.types import ModelError


def made(root: Path, key: str, *, age: int, num_bytes: int = 1000) -> Path:
    """An entry that another process made and no longer uses."""
    folder = root / key
    folder.mkdir(mode=0o700)
    (folder / "model").write_bytes(bytes(num_bytes))
    manifest.write(folder, {})
    os.utime(folder, (10_000 - age, 10_000 - age))
    return folder


def put(cache: Cache, key: str, num_bytes: int = 1000) -> None:
    with cache.new_folder() as folder:
        (folder / "model").write_bytes(bytes(num_bytes))
        cache.put(key, folder, {})


def kept(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_the_newest_entries_are_kept(tmp_path: Path) -> None:
    for number in range(4):
        made(tmp_path, f"key{number}", age=10 - number)
    leftover = tmp_path / ".new-leftover"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    assert Cache(tmp_path).find("key0") is not None  # which makes it the newest
    put(Cache(tmp_path, max_entries=3), "another")
    assert kept(tmp_path) == {"another", "key0", "key3"}


def test_the_oldest_go_until_the_rest_has_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    for age in (1, 2, 3):
        made(tmp_path, f"of age {age}", age=age)
    put(Cache(tmp_path, max_bytes=3000), "another")
    assert kept(tmp_path) == {"another", "of age 1", "of age 2"}


def test_what_is_in_use_stays_above_the_limit(tmp_path: Path) -> None:
    made(tmp_path, "in use", age=3)
    made(tmp_path, "not in use", age=1)
    assert Cache(tmp_path).find("in use") is not None
    os.utime(tmp_path / "in use", (0, 0))
    put(Cache(tmp_path, max_bytes=0), "another")
    assert kept(tmp_path) == {"another", "in use"}


MIB = 1 << 20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its root, on a disk with 3 MiB; the temporary folder has 30."""
    root, temporary = tmp_path / "cache", tmp_path / "temporary"
    for folder in (root, temporary):
        folder.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def disk_usage(path: Path) -> Any:
        return shutil._ntuple_diskusage(100 * MIB, 0, (3 if root in (path, *path.parents) else 30) * MIB)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    return root


def test_what_fits_is_made_in_the_cache_and_kept(cache: Path) -> None:
    with Cache(cache).new_folder(3 * MIB) as folder:
        assert folder.parent == cache
        Cache(cache).put("key", folder, {"a": 1})
    found = Cache(cache).find("key")
    assert found is not None
    assert found.facts == {"a": 1}


def test_what_does_not_fit_is_made_elsewhere_and_not_kept(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Cache(cache).new_folder(4 * MIB) as folder:
        assert folder.parent == cache.with_name("temporary")
        Cache(cache).put("key", folder, {})
    assert list(cache.iterdir()) == []
    assert not folder.exists()
    assert caplog.messages == [f"the model is not cached: it takes up to 4 MiB, and 3 MiB are free in {cache}"]


def test_what_fits_nowhere_is_refused_with_the_numbers(cache: Path) -> None:
    with (
        pytest.raises(ModelError, match=r"^it takes up to 31 MiB, and 30 MiB are free in "),
        Cache(cache).new_folder(31 * MIB),
    ):
        pass
    assert list(cache.with_name("temporary").iterdir()) == []


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
