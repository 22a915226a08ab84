"""A folder for the sockets of servers that run, of each test alone."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of this test alone, with a short path."""
    folder = Path("/tmp") / f"takeover-{os.getpid()}-{hash(tmp_path) & 0xFFFFFF:x}"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)
