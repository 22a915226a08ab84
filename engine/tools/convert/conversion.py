"""A model's folder into a new one without pickles: planned here, converted by a child, copied, renamed when whole.

Knows no tensor and imports no torch. See engine/tools/convert/child.py for what reads the weights.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.tools.convert.isolation import Limits
from engine.tools.convert.job import Converted, Job, run
from engine.tools.convert.plan import Plan, plan
from engine.types import ModelError

_MAX_SHARD_BYTES = 5_000_000_000
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was done."""

    folder: Path  # the new one
    converted: tuple[Converted, ...]
    num_copied: int
    left_out: tuple[str, ...]  # weights that are neither in the new folder nor converted
    without_network: bool  # whether the child was cut off from it


def new_folder(out: Path) -> Path:
    """Where a converted model may go: nothing is there yet, or an empty folder. Raises ModelError where it may not."""
    out = out.expanduser().absolute()
    out = out.resolve() if out.is_symlink() else out
    if not out.parent.is_dir():
        raise ModelError(f"{out.parent} is not a folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out} exists and is not an empty folder; nothing is written over")
    return out


def convert(folder: Path, out: Path, *, max_shard_bytes: int = _MAX_SHARD_BYTES) -> Conversion:
    """Make `out` of `folder`. Whatever goes wrong or ends this process, `out` is whole or is not there.

    Raises ModelError with one line.
    """
    out, planned = new_folder(out), plan(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.new-", dir=out.parent) as scratch:
            unfinished = Path(scratch, "model")  # made with this user's usual rights, unlike the folder around it
            unfinished.mkdir()
            answer = run(Job(planned.targets, unfinished, max_shard_bytes, _limits(planned, max_shard_bytes)))
            _copy(planned, unfinished)
            unfinished.rename(out)
    except OSError as error:
        raise ModelError(f"{out} can't be written: {error.strerror or error}") from error
    return Conversion(out, answer.converted, len(planned.copied), planned.left_out, answer.without_network)


def _limits(planned: Plan, max_shard_bytes: int) -> Limits:
    """Enough for weights that are what they look like: mapped or read once, made contiguous and written."""
    size = planned.num_source_bytes
    return Limits(
        max_file_bytes=max(size, max_shard_bytes) + _GIB,
        max_memory_bytes=4 * _GIB + 4 * size,
        max_cpu_seconds=120 + 60 * size // _GIB,
    )


def _copy(planned: Plan, target: Path) -> None:
    """The files themselves, where the folder has links to them."""
    for name, path in planned.copied.items():
        new = target / name
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new)
