"""How many compiled models are kept, and of how many bytes; those that a process uses are never removed."""

import os
from pathlib import Path

from engine.store import manifest
from engine.store.cache import Cache


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
