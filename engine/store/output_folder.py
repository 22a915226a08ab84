"""The new folder that a command makes of a model: whole, or not there."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.types import ModelError


def new_folder(out: Path) -> Path:
    """The absolute path of `out`, which must not exist or be an empty folder. Raises ModelError."""
    out = out.expanduser().absolute()
    out = out.resolve() if out.is_symlink() else out
    if not out.parent.is_dir():
        raise ModelError(f"{out.parent} is not a folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out} exists and is not an empty folder, which is not overwritten")
    return out


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """An empty folder, which becomes `out` if nothing goes wrong, and else leaves nothing. `out` is of `new_folder`.

    If `out` is there, it may be a volume, which can't be replaced: then it gets the files one by one. Raises ModelError
    where `out` can't be written.
    """
    is_there = out.is_dir()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.new-", dir=out if is_there else out.parent) as scratch:
            folder = Path(scratch, "model")  # made with this user's usual rights, unlike the folder around it
            folder.mkdir()
            yield folder
            if not is_there:
                folder.rename(out)
                return
            if [*out.iterdir()] != [Path(scratch)]:
                raise ModelError(f"{out} is not empty any more: something else writes into it")
            for entry in sorted(folder.iterdir()):
                entry.rename(out / entry.name)
    except OSError as error:
        raise ModelError(f"{out} can't be written: {error.strerror or error}") from error
