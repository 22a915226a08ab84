"""Makes a new model folder without pickles: plans it, starts the converting process, copies the other files.

Knows no tensor and imports no torch. engine/convert/process.py reads the weights. It gets a ConversionJob as JSON
on its standard input and answers in JSON, so that nothing it says is unpickled.
"""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.convert.plan import ConversionPlan, Target, plan
from engine.store.output_folder import new_folder, unfinished
from engine.types import ModelError

_MAX_SHARD_BYTES = 5_000_000_000
_GIB = 1 << 30
_BLOCK = 512  # bytes, of st_blocks (stat(2))
_POLL_SECONDS = 0.2  # between two looks at how far the converting process is
_MAX_ANSWER_BYTES = 8 << 20  # the names of some 100,000 files
_READ_BYTES = 65_536
_CHILD = "engine.convert.process"
_APP_ROOT = Path(__file__).resolve().parents[2]
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
# The child must have one thread to leave the network, and each further one would take memory off its limit.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_REASONS = {
    "SIGXCPU": "it took more time than weights of this size should",
    "SIGBUS": "the disk is full, or the file was cut short meanwhile",
}

Report = Callable[[int, int], None]  # bytes of new weights that are written, and of all, which is an estimate


@dataclass(frozen=True, slots=True)
class ConversionLimits:
    """The limits of the converting process."""

    max_file_bytes: int  # of each file that it writes
    max_memory_bytes: int  # of private writable memory, which includes mapped files
    max_cpu_seconds: int


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """All that one converting process does."""

    targets: tuple[Target, ...]
    folder: Path  # where the new files go, as their stems say
    max_shard_bytes: int
    limits: ConversionLimits

    def to_json(self) -> str:
        """The job as the child reads it."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> "ConversionJob":
        """Read what to_json made."""
        fields: dict[str, Any] = json.loads(text)
        targets = tuple(
            Target({name: Path(path) for name, path in each["sources"].items()}, each["shards"], each["stem"])
            for each in fields["targets"]
        )
        return cls(targets, Path(fields["folder"]), fields["max_shard_bytes"], ConversionLimits(**fields["limits"]))


@dataclass(frozen=True, slots=True)
class ConvertedTarget:
    """The new files of one target."""

    stem: str
    files: tuple[str, ...]
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """The answer of the converting process."""

    converted: tuple[ConvertedTarget, ...]
    without_network: bool  # whether the kernel let it leave the network


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion."""

    folder: Path  # the new one
    converted: tuple[ConvertedTarget, ...]
    num_copied: int
    left_out: tuple[str, ...]  # weights that are neither in the new folder nor converted
    without_network: bool  # whether the child was cut off from it


def convert(folder: Path, out: Path, *, max_shard_bytes: int = _MAX_SHARD_BYTES) -> Conversion:
    """Make `out` from `folder`. Whatever goes wrong or ends this process, `out` is whole or is not there, or empty.
    Raises ModelError with one line."""
    out, planned = new_folder(out), plan(folder)
    with unfinished(out) as new:
        answer = fill(new, planned, max_shard_bytes=max_shard_bytes)
    return Conversion(out, answer.converted, len(planned.copied), planned.left_out, answer.without_network)


def fill(
    folder: Path,
    planned: ConversionPlan,
    *,
    max_shard_bytes: int = _MAX_SHARD_BYTES,
    report: Report = lambda done, total: None,
) -> ConversionReport:
    """Put the new weights and the copied files of a plan into an empty folder, which is unfinished until this returns.
    Raises ModelError with one line, and OSError where a file can't be copied."""
    job = ConversionJob(planned.targets, folder, max_shard_bytes, _limits(planned, max_shard_bytes))
    answer = _run(job, lambda: report(_num_bytes_in(folder), planned.num_source_bytes))
    copy_files(planned.copied, folder)
    return answer


def _num_bytes_in(folder: Path) -> int:
    """Bytes on the disk: a file of safetensors has its full size before it is written."""
    return sum(_BLOCK * file.stat().st_blocks for file in folder.rglob("*.safetensors"))


def copy_files(files: dict[str, Path], target: Path) -> None:
    """Copy `files`, relative name -> where it is, into `target`. Links become files. Raises OSError."""
    for name, path in files.items():
        new = target / name
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new)


def _limits(planned: ConversionPlan, max_shard_bytes: int) -> ConversionLimits:
    """Enough for honest weights: mapped or read once, made contiguous and written."""
    size = planned.num_source_bytes
    return ConversionLimits(
        max_file_bytes=max(size, max_shard_bytes) + _GIB,
        max_memory_bytes=4 * _GIB + 4 * size,
        max_cpu_seconds=120 + 60 * size // _GIB,
    )


def _run(job: ConversionJob, look: Callable[[], None]) -> ConversionReport:
    """Start a child with this job and wait for it; `look` is called meanwhile. Raises ModelError with one line where it
    does not succeed. An exception, such as a signal handler's, ends the child."""
    try:
        with tempfile.TemporaryFile() as given:  # a pipe might not hold it, and the child answers by one
            given.write(job.to_json().encode())
            given.seek(0)
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD, str(os.getpid())],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd=job.folder,
            )
    except OSError as error:
        raise ModelError(f"the converting process can't be started: {error.strerror}") from error
    with child:
        try:
            said = _wait(child, look)
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise ModelError(f"the converting process ended early ({_ending(child.returncode)})")
    return _read(said)


def _wait(child: "subprocess.Popen[bytes]", look: Callable[[], None]) -> bytes:
    """Wait for the answer. The child has opened a pickle and may say anything. Raises ModelError where that is too
    long."""
    assert child.stdout is not None
    said = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(_POLL_SECONDS):
                look()
                continue
            new = os.read(child.stdout.fileno(), _READ_BYTES)
            said += new
            if not new:
                return bytes(said)
            if len(said) > _MAX_ANSWER_BYTES:
                raise ModelError("the converting process does not end its answer")


def _read(said: bytes) -> ConversionReport:
    """What the child said. Raises ModelError."""
    try:
        answer = json.loads(said)
        if "error" in answer:
            raise ModelError(answer["error"])
        converted = tuple(ConvertedTarget(**{**each, "files": tuple(each["files"])}) for each in answer["converted"])
        return ConversionReport(converted, answer["without_network"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError("the converting process gave a wrong answer") from error


def _environment() -> dict[str, str]:
    """No token, no proxy, no home."""
    path = os.pathsep.join([str(_APP_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **_ONE_THREAD, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def _ending(returncode: int) -> str:
    if returncode > 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"{name}: {_REASONS[name]}" if name in _REASONS else name
