"""Starts servers for the benchmark: from this checkout, with wheels that are not installed, and a log that is kept.

Where the Python at hand lacks what the server needs (fastapi, uvicorn, msgspec, …), WHEELS names a folder of wheels:
they are unpacked into a folder that goes onto the path (`make gpu-wheels` downloads them).
"""

import contextlib
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.bench import Bench, TimeUp
from benchmarks.gpu.rows import Key
from benchmarks.measuring.processes import tree
from benchmarks.measuring.servers import RunningServer, ServerFailed, embedline

_STOP_SECONDS = 4.0  # until a server that does not end is killed
_MAX_LOG_BYTES = 1_000_000
_ENGINE_NAMES = (b"embedline: engine ", b"engine.worker")  # with setproctitle and without it


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts servers."""

    bench: Bench
    path: Sequence[str]  # what is on the path of their processes, beside this checkout
    caches: Path  # a folder for compiled kernels and quantized weights, one of each model

    @contextlib.contextmanager
    def started(self, key: Key, flags: Sequence[str]) -> Iterator[RunningServer]:
        """A server that may not be ready yet, and is gone after the block. Its log is named by the key."""
        recipe = embedline("--devices", str(self.bench.clock.device), *flags)
        recipe.environment["PYTHONPATH"] = os.pathsep.join([recipe.environment["PYTHONPATH"], *self.path])
        log = self.log_of(key)
        self.caches.mkdir(parents=True, exist_ok=True)
        server = RunningServer(recipe, cache=self.caches / slug(key), log=log)
        try:
            yield server
        finally:
            server.stop(seconds=_STOP_SECONDS)
            bound(log)

    def log_of(self, key: Key) -> Path:
        """Beside the rows."""
        return self.bench.rows.path.with_name(f"server-{slug(key)}.log")

    def has_cache(self, key: Key) -> bool:
        """Whether a server that has answered left one."""
        return self._answered(key).exists()

    def forget_cache(self, key: Key) -> None:
        """The next start finds nothing."""
        self._answered(key).unlink(missing_ok=True)
        shutil.rmtree(self.caches / slug(key), ignore_errors=True)

    def first_answer(
        self, key: Key, server: RunningServer, ask: Callable[[float], object], *, patience: float
    ) -> float:
        """Seconds from the start to it. Raises ServerFailed, and TimeUp where the step's own time is over."""
        left = self.bench.deadline - time.monotonic()
        try:
            seconds = server.wait_for(ask, patience=min(patience, left))
        except ServerFailed:
            if left < patience and server.process.poll() is None:
                raise TimeUp from None
            raise
        self._answered(key).touch()
        return seconds

    def _answered(self, key: Key) -> Path:
        return self.caches / f"{slug(key)}.answered"


def slug(key: Key) -> str:
    """A model and its precision in a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", f"{key.subject} {key.precision}".lower())


def engine_of(server: RunningServer) -> int:
    """The process that computes. Raises ServerFailed where there is none."""
    for pid in tree(server.process.pid):
        with contextlib.suppress(OSError):
            if any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in _ENGINE_NAMES):
                return pid
    raise ServerFailed("no engine's process is there")


def bound(log: Path) -> None:
    """Of a log that has become too long, the beginning and the end are kept."""
    if log.stat().st_size <= _MAX_LOG_BYTES:
        return
    content = log.read_bytes()
    half = _MAX_LOG_BYTES // 2
    log.write_bytes(content[:half] + b"\n... what was here is left out ...\n" + content[-half:])


def unpacked(wheels: str | None, folder: Path) -> list[str]:
    """What is to be on the path of a process: the folder of these wheels' files, and whatever is there already."""
    found = sorted(Path(wheels).glob("*.whl")) if wheels else []
    if wheels and not found:
        raise FileNotFoundError(f"WHEELS={wheels} holds no *.whl: `make gpu-wheels WHEELS={wheels}` downloads them")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return [*([str(folder)] if found else []), *filter(None, [os.environ.get("PYTHONPATH")])]
