"""Makes the block-FP8 copy of a model in a process of its own, so that the server's Python needs no torch.

The child is engine/tools/quantize/cached.py. It reads a Job as JSON from standard input, logs to standard error and
answers in JSON on standard output.
"""

import fcntl
import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.failures import one_line
from engine.types import ModelError

_CHILD = "engine.tools.quantize.cached"
_APP_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Job:
    """What the child is to do."""

    folder: str  # of the model
    cache_dir: str | None
    log_level: str
    json_output: bool  # of log lines


def block_fp8(folder: Path, *, cache_dir: str | None, python: str, log_level: str, json_output: bool) -> Path:
    """What cached.block_fp8 does, by a child that runs under `python`, which has torch. Takes minutes for a large model
    the first time. The copy is not removed while this process lives.

    Raises ModelError with one line.
    """
    job = Job(str(folder), cache_dir, log_level, json_output)
    path = os.pathsep.join([str(_APP_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        ended = subprocess.run(
            [python, "-P", "-m", _CHILD, str(os.getpid())],
            input=json.dumps(asdict(job)).encode(),
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        if ended.returncode:
            raise ModelError(f"the process that makes the FP8 copy ended early (exit code {ended.returncode})")
        answer = json.loads(ended.stdout)
        if "error" in answer:
            raise ModelError(answer["error"])
        copy = Path(answer["copy"])
        hold(copy)
    except OSError as error:
        raise ModelError(f"the FP8 copy of the model can't be made: {one_line(error)}") from error
    return copy


def hold(copy: Path) -> None:
    """Keep other processes from removing the copy while this process lives. Raises OSError."""
    descriptor = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)  # never closed: the lock lasts as long
    fcntl.flock(descriptor, fcntl.LOCK_SH)
