"""What the converting process is told on its standard input, and what it answers: JSON, for nothing it says is to be
unpickled. Starts it, too."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.tools.convert.isolation import Limits
from engine.tools.convert.plan import Target
from engine.types import ModelError

_MODULE = "engine.tools.convert.child"
_APP_ROOT = Path(__file__).resolve().parents[3]
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
# A process with one thread: to leave the network it must be, and each further one would take memory off its limit.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Job:
    """All that one converting process does."""

    targets: tuple[Target, ...]
    folder: Path  # where the new files go, as their stems say
    max_shard_bytes: int
    limits: Limits

    def to_json(self) -> str:
        """For the child."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """What to_json made."""
        fields: dict[str, Any] = json.loads(text)
        targets = tuple(
            Target({name: Path(path) for name, path in each["sources"].items()}, each["shards"], each["stem"])
            for each in fields["targets"]
        )
        return cls(targets, Path(fields["folder"]), fields["max_shard_bytes"], Limits(**fields["limits"]))


@dataclass(frozen=True, slots=True)
class Converted:
    """What a target has become."""

    stem: str
    files: tuple[str, ...]
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child has done."""

    converted: tuple[Converted, ...]
    without_network: bool  # whether the kernel let it leave


def run(job: Job) -> Answer:
    """Start a child with this job and wait for it. Raises ModelError with one line where it does not succeed."""
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", _MODULE, str(os.getpid())],
            input=job.to_json().encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            cwd=job.folder,
            check=False,
        )
    except OSError as error:
        raise ModelError(f"the converting process can't be started: {error.strerror}") from error
    if ended.returncode:
        raise ModelError(f"the converting process ended early ({_ending(ended.returncode)})")
    answer = json.loads(ended.stdout)
    if "error" in answer:
        raise ModelError(answer["error"])
    converted = tuple(Converted(**{**each, "files": tuple(each["files"])}) for each in answer["converted"])
    return Answer(converted, answer["without_network"])


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
    return f"{name}: it took more time than weights of this size should" if name == "SIGXCPU" else name
