"""Digests of files, and which of a kept model's files are sampled."""

import hashlib
import logging
import os
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.store import fingerprint, manifest
from engine.store.cache import Cache

BLOCK, NUM_BLOCKS = 64 << 10, 64


def test_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert fingerprint.whole(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("size", [0, 1, BLOCK, 3 * BLOCK + 1])
def test_of_a_small_file_a_sample_is_every_byte(size: int, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    before = fingerprint.sampled(file)
    assert fingerprint.sampled(file) == before
    for place in {0, size // 2, size - 1} if size else set():
        content = bytearray(size)
        content[place] = 1
        file.write_bytes(content)
        assert fingerprint.sampled(file) != before
    file.write_bytes(bytes(size + 1))
    assert fingerprint.sampled(file) != before


def test_of_a_large_file_it_is_blocks_from_end_to_end(tmp_path: Path) -> None:
    file, size = tmp_path / "file", 4 * NUM_BLOCKS * BLOCK
    with file.open("wb") as stream:
        stream.truncate(size)
    before, last = fingerprint.sampled(file), size - BLOCK
    for number in (0, 1, 31, NUM_BLOCKS - 1):
        for place in (last * number // (NUM_BLOCKS - 1), last * number // (NUM_BLOCKS - 1) + BLOCK - 1):
            write(file, place, b"x")
            assert fingerprint.sampled(file) != before
            write(file, place, b"\0")
    assert fingerprint.sampled(file) == before
    write(file, 2 * BLOCK, b"x")
    assert fingerprint.sampled(file) == before  # between two blocks


def write(file: Path, place: int, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(place)
        stream.write(content)


@pytest.mark.parametrize("damage", ["cut", "replaced", "hole"])
def test_large_files_of_an_entry_are_sampled(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(manifest, "_MAX_WHOLE", 4 * NUM_BLOCKS * BLOCK)
    monkeypatch.setattr(fingerprint, "whole", lambda file: f"whole {file.name}")
    monkeypatch.setattr(os, "fsync", synced.append)
    cache = Cache(tmp_path)
    size = 4 * NUM_BLOCKS * BLOCK + 1
    with cache.new_folder() as folder:
        (folder / "large").write_bytes(b"x" * size)
        (folder / "small").write_bytes(b"x")
        cache.put("key", folder, {})
    assert len(synced) == 1
    large = tmp_path / "key" / "large"
    os.utime(large, (1, 1))  # a copy of a folder is as good
    assert cache.find("key") is not None
    if damage == "cut":
        os.truncate(large, size - 1)
    elif damage == "replaced":
        large.write_bytes(b"y" * size)
    else:
        write(large, size // 2, bytes(6 * BLOCK))
    with caplog.at_level(logging.WARNING):
        assert cache.find("key") is None
    assert "a file has changed since it was written" in caplog.text
    assert not (tmp_path / "key").exists()


def test_whether_anything_can_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    assert Cache(tmp_path / "new").can_keep()
    assert not Cache(None).can_keep()
    with caplog.at_level(logging.WARNING):
        assert not Cache(tmp_path / "file").can_keep()
    assert len(caplog.records) == 1


def test_another_version_of_a_library_or_format_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(format_number: int = 1) -> str:
        return fingerprint.key(tmp_path, format_number=format_number, packages=("numpy",), choices={})

    before = key()
    assert key(2) != before
    monkeypatch.setattr(metadata, "distributions", lambda name: [SimpleNamespace(version=f"0 of {name}")])
    assert key() != before
