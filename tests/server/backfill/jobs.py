"""Jobs as the tests run them: an input of numbered texts, and what the fake engine must have made of it."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedline.client.preference import CancellationToken
from server.features.backfill.job import Job, Options
from tests.server_e2e.expected import ids_of, row_of_ids
from tests.server_e2e.running import CACHE_HOME, PATIENCE, ROOT, Server

Backfill = Callable[..., int]  # see conftest.py
BAD = {3: "", 40: None, 77: 5}  # rows of `texts` that can't be embedded


class Place:
    """OUT, wherever it is, and its files by their names."""

    def __init__(self, location: Path | str) -> None:
        self._location = str(location)
        self._filesystem, self._root = fsspec.core.url_to_fs(self._location)

    def __str__(self) -> str:
        return self._location

    def names(self, pattern: str = "*") -> list[str]:
        """In order; none where it is not there."""
        if not self._filesystem.exists(self._root):
            return []
        found = (str(path).rpartition("/")[2] for path in self._filesystem.ls(self._root, detail=False))
        return sorted(name for name in found if fnmatch(name, pattern))

    def read(self, name: str) -> bytes:
        content: bytes = self._filesystem.cat_file(f"{self._root}/{name}")
        return content

    def write(self, name: str, content: bytes) -> None:
        self._filesystem.makedirs(self._root, exist_ok=True)
        self._filesystem.pipe_file(f"{self._root}/{name}", content)

    def remove(self, name: str) -> None:
        self._filesystem.rm_file(f"{self._root}/{name}")

    def version(self, name: str) -> object:
        """Another one whenever it is written."""
        facts = self._filesystem.info(f"{self._root}/{name}")
        return facts.get("ino") or facts["created"]


def texts(count: int) -> list[Any]:
    """Of different lengths; some are bad."""
    return [BAD[number] if number in BAD else f"row {number} " + "and more " * (number % 5) for number in range(count)]


def write_jsonl(path: Path, values: Sequence[Any]) -> Path:
    """With the ids k0, k1, …"""
    lines = [json.dumps({"key": f"k{number}", "text": value}) for number, value in enumerate(values)]
    path.write_text("\n".join(lines) + "\n")
    return path


def options(location: Path | str, out: Path | Place, **changed: Any) -> Options:
    """Of a job over such a file."""
    given: dict[str, Any] = {
        "sink": None,
        "table": None,
        "column": "text",
        "id_column": "key",
        "model": None,
        "ask": {},
        "dtype": "float32",
        "format": "parquet",
        "shard_rows": 50,
        "resume": False,
        "worker": (0, 1),
        "max_errors": 0,
        "dry_run": False,
    }
    return Options(location=str(location), out=str(out), **{**given, **changed})


def url_of(server: Server) -> str:
    """Its base URL."""
    return f"http://127.0.0.1:{server.port}"


def run(options: Options, *urls: str, token: CancellationToken | None = None) -> int:
    """The exit code."""
    return Job(options).run(urls, None, token or CancellationToken())


def written(out: Path | Place) -> tuple[list[Any], list[NDArray[np.float32] | None]]:
    """All ids and rows of the parts, in order."""
    ids: list[Any] = []
    rows: list[NDArray[np.float32] | None] = []
    place = Place(str(out))
    for part in place.names("part-*.parquet"):
        table = pq.read_table(io.BytesIO(place.read(part)))
        ids += table["id"].to_pylist()
        rows += [None if row is None else np.array(row, np.float32) for row in table["embedding"].to_pylist()]
    return ids, rows


def check(out: Path | Place, values: Sequence[Any], ids: Sequence[Any]) -> None:
    """Ids, order, count and every row are exact, and what can't be embedded is null."""
    found_ids, rows = written(out)
    assert found_ids == list(ids)
    for value, row in zip(values, rows, strict=True):
        if isinstance(value, str) and value:
            assert row is not None
            assert (row == row_of_ids(ids_of(value))).all()
        else:
            assert row is None


def errors(out: Path | Place) -> list[dict[str, Any]]:
    """Of the whole job."""
    return [json.loads(line) for line in Place(str(out)).read("errors.jsonl").splitlines()]


def command(
    *arguments: str | Path,
    python: str | Path = sys.executable,
    module: str = "embedline",
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[str]":
    """As people run it."""
    return subprocess.Popen(
        [python, "-P", "-m", module, "backfill", *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": os.environ[CACHE_HOME],
            "EMBEDLINE_DEVICES": "cpu",
            "DTYPE": "float32",
            **(environment or {}),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_amid(process: "subprocess.Popen[str]", is_time: Callable[[], bool]) -> None:
    """Kills a command as soon as it is time, and before it has ended."""
    with process:
        while not is_time():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
            assert process.poll() is None, process.communicate()
        process.kill()
        process.communicate()


def end(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any], str]:
    """Of a command, once it has ended: the exit code, the last line it printed, and standard error."""
    with process:
        printed, said = process.communicate(timeout=PATIENCE)
    lines = printed.splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else {}, said
