"""A model's folder into a new one with FP8 weights, or on with that where it ended early. Renamed when it is whole.

The new folder has the old one's files, names and shards. Knows no format: see plan.py and shard.py.
"""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.tools.convert.conversion import new_folder
from engine.tools.quantize import shard
from engine.tools.quantize.journal import Journal, is_left_by_a_finished_one
from engine.tools.quantize.plan import Plan, plan
from engine.types import ModelError

Report = Callable[[int, int], None]  # bytes of the model's weights that are done, and of all of them


@dataclass(frozen=True, slots=True)
class Done:
    """What was made."""

    folder: Path  # the new one
    errors: dict[str, float]  # relative RMS of each quantized tensor
    num_plain: int  # tensors that were copied
    num_bytes_before: int  # of the files of weights
    num_bytes: int  # of the new ones
    num_copied: int  # other files
    is_resumed: bool


def out_folder(out: Path) -> Path:
    """Where the new folder goes. Raises ModelError where it may not go there."""
    absolute = out.expanduser().absolute()
    if is_left_by_a_finished_one(_partial(absolute)):
        return absolute
    return new_folder(out)


def quantize(folder: Path, out: Path, *, report: Report) -> Done:
    """Make `out` of `folder`, or go on with that. Whatever goes wrong or ends this process, `out` is whole or is not
    there; what is unfinished lies beside it, and the next call with the same arguments takes it up.

    Raises ModelError with one line.
    """
    out, planned = out_folder(out), plan(folder)
    try:
        with Journal(_partial(out), planned.key) as journal, _one_thread():
            if journal.is_resumed and is_left_by_a_finished_one(journal.folder) and out.is_dir():
                shutil.rmtree(journal.folder)
            else:
                new_folder(out)
                _make(planned, journal, report)
                journal.finish(out)
    except OSError as error:
        raise ModelError(f"{out} can't be written: {error.strerror or error}") from error
    return _done(out, planned, journal)


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Strips are small: one thread is faster than several that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _make(planned: Plan, journal: Journal, report: Report) -> None:
    journal.model.mkdir(exist_ok=True)
    total = sum(piece.source.num_bytes for layout in planned.layouts.values() for piece in layout.pieces)
    num_done = 0

    def advance(num_bytes: int) -> None:
        nonlocal num_done
        num_done += num_bytes
        report(num_done, total)

    for name, layout in planned.layouts.items():
        shard.write(planned.sources[name].file, journal.model / name, layout, journal, advance=advance)
    for name, path in planned.copied.items():
        new = journal.model / name
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new)
    for name, text in planned.written.items():
        (journal.model / name).write_text(text, encoding="utf-8")


def _done(out: Path, planned: Plan, journal: Journal) -> Done:
    errors = {entry.tensor: entry.error for entry in journal.entries if entry.error is not None}
    return Done(
        folder=out,
        errors={name: errors[name] for name in sorted(errors, key=_in_order)},
        num_plain=sum(piece.scales_begin is None for each in planned.layouts.values() for piece in each.pieces),
        num_bytes_before=sum(source.file.stat().st_size for source in planned.sources.values()),
        num_bytes=sum(layout.num_bytes for layout in planned.layouts.values()),
        num_copied=len(planned.copied),
        is_resumed=journal.is_resumed,
    )


def _in_order(name: str) -> list[tuple[int, str]]:
    """Layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"\.", name)]
