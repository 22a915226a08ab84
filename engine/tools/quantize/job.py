"""Makes a new folder with FP8 weights from a model's folder. It gets its name when it is whole.

The new folder has the old one's files, names and shards. Knows no format: see plan.py and shard.py.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.store import copies
from engine.store.output_folder import new_folder
from engine.tools.quantize import shard
from engine.tools.quantize.plan import CONFIG, Plan, plan
from engine.types import ModelError

Report = Callable[[int, int], None]  # bytes of the model's weights that are done, and of all of them


@dataclass(frozen=True, slots=True)
class Done:
    """The new folder, and what quantizing lost."""

    folder: Path  # the new one
    errors: dict[str, float]  # relative RMS of each quantized tensor
    num_plain: int  # tensors that were copied
    num_bytes_before: int  # of the files of weights
    num_bytes: int  # of the new ones
    num_copied: int  # other files


def quantize(folder: Path, out: Path, *, report: Report) -> Done:
    """Make `out` from `folder`. Whatever goes wrong or ends this process, `out` is whole or is not there.

    Unfinished work is in OUT.partial. If this process is killed, the next call removes that and starts again.
    Raises ModelError with one line.
    """
    out, planned = new_folder(out), plan(folder)
    try:
        with _unfinished(copies.unfinished(out), planned.written[CONFIG]) as model, _one_thread():
            new_folder(out)  # another process may have made it since
            errors = _write(planned, model, report)
            _sync(model)
            model.rename(out)
            _sync_one(out.parent)
    except OSError as error:
        raise ModelError(f"{out} can't be written: {error.strerror or error}") from error
    return Done(
        folder=out,
        errors={name: errors[name] for name in sorted(errors, key=_by_layer)},
        num_plain=sum(piece.scales_begin is None for each in planned.layouts.values() for piece in each.pieces),
        num_bytes_before=sum(source.file.stat().st_size for source in planned.sources.values()),
        num_bytes=sum(layout.header.num_bytes for layout in planned.layouts.values()),
        num_copied=len(planned.copied),
    )


@contextlib.contextmanager
def _unfinished(folder: Path, config: str) -> Iterator[Path]:
    """`folder` with nothing but a config.json, locked by this process. Removed if an exception comes.

    config.json is the lock, and shows whose folder it is. So nothing else is to be removed once the folder has its
    final name. Raises ModelError where `folder` holds something else, or another process has locked it; OSError.
    """
    lock, content = folder / CONFIG, config.encode()
    in_the_way = ModelError(f"{folder} is in the way: it is not unfinished work on this model; remove it")
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not lock.is_file())):
        raise in_the_way
    folder.mkdir(exist_ok=True)
    with lock.open("a+b") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel's: a process that ends holds it no more
        except BlockingIOError as error:
            raise ModelError(f"another process is at work in {folder}") from error
        if not os.path.samestat(os.fstat(opened.fileno()), lock.stat()):  # another process has just finished with it
            raise ModelError(f"another process is at work in {folder}")
        opened.seek(0)
        if not content.startswith(opened.read(len(content) + 1)):
            raise in_the_way
        try:
            _remove_others(folder)  # from a run that was killed
            opened.truncate(0)
            opened.write(content)
            opened.flush()
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _remove_others(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != CONFIG:
            path.unlink()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Strips are small: one thread is faster than several that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write(planned: Plan, target: Path, report: Report) -> dict[str, float]:
    """All files of the new folder but config.json; the relative RMS of each quantized tensor."""
    total = sum(piece.source.num_bytes for layout in planned.layouts.values() for piece in layout.pieces)
    num_done = 0

    def advance(num_bytes: int) -> None:
        nonlocal num_done
        num_done += num_bytes
        report(num_done, total)

    errors: dict[str, float] = {}
    for name, layout in planned.layouts.items():
        errors |= shard.write(planned.sources[name].file, target / name, layout, advance=advance)
    for name, path in planned.copied.items():
        new = target / name
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, new)
    for name, text in planned.written.items():
        if name != CONFIG:
            (target / name).write_text(text, encoding="utf-8")
    return errors


def _sync(folder: Path) -> None:
    """Wait until all of it is on the disk, so that a folder with its final name is whole after a power cut too."""
    for path in (*folder.rglob("*"), folder):
        _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some network file systems can't sync folders
            raise
    finally:
        os.close(descriptor)


def _by_layer(name: str) -> list[tuple[int, str]]:
    """Layer 10 comes after layer 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"\.", name)]
