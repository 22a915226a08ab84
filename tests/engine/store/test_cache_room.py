"""Where a model is made when the disk of the cache is full."""

import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine.store.cache import Cache
from engine.types import ModelError

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
