"""Files that stand in for others, which a tool has not fetched yet: of Git LFS, git-annex and DVC."""

import os
from pathlib import Path

_LFS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
_ANNEX = "annex/objects/"
_MAX_BYTES = 32_768  # of a placeholder; git-annex's are the longest
_MAX_FOLDERS = 2  # above a file in a folder that DVC keeps as a whole


def placeholder(file: Path) -> str:
    """The placeholder of this file or folder, and how it is fetched; "" where it has none. Raises no OSError."""
    try:
        return _in_place(file) or _beside(file)
    except OSError:
        return ""


def _in_place(file: Path) -> str:
    if file.is_symlink() and not file.exists():
        start = os.readlink(file).encode(errors="replace")
    elif file.is_file() and file.stat().st_size <= _MAX_BYTES:
        with file.open("rb") as opened:
            start = opened.read(256)
    else:
        return ""
    if start.startswith(_LFS):
        return f"{file} is a pointer of Git LFS; git lfs pull fetches the file"
    # A link, or a file with the key in it, or, where the file system has no links, one with the link's target.
    if start.startswith((b"/", b".")) and _ANNEX.encode() in start.partition(b"\n")[0]:
        return f"{file} is a placeholder of git-annex; git annex get fetches the file"
    return ""


def _beside(file: Path) -> str:
    """DVC leaves `NAME.dvc` where NAME was, of a file or of a folder."""
    if file.exists():
        return ""
    for path in (file, *file.parents[:_MAX_FOLDERS]):
        note = path.with_name(f"{path.name}.dvc") if path.name else path
        if note.is_file() and not path.exists():
            return f"{path} is not here, and {note.name} stands in for it; dvc pull fetches it"
    return ""
