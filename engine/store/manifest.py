"""The manifest of a folder that this program wrote: facts about it, and a digest of each file, by which a later process
sees that it is as it was written. Knows no content."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.store import fingerprint

Json = dict[str, Any]

FILE = "manifest.json"
# Larger files are checked by samples at each start: hashing 8 GB of weights takes seconds, and a start should read
# them within one. They are synced to the disk before the manifest is written, so they can only be cut short, replaced
# or gone as a whole, which samples show. Files that are hashed whole need no sync.
_MAX_WHOLE = 64 << 20  # bytes


def write(folder: Path, facts: Json, *, samples: bool = True) -> None:
    """Write the manifest of a folder whose files are complete. samples: False = every byte counts, of large files too,
    as for a folder that goes to other machines. Raises OSError."""
    for file in filter(_is_large, _files(folder)):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    content = {"facts": facts, "files": _digests(folder, samples=samples)}
    manifest = {**content, "digest": fingerprint.of_json(content)}
    (folder / FILE).write_text(json.dumps(manifest, indent=1))


def read(folder: Path) -> Json:
    """The facts of a folder whose large files were sampled. Raises ValueError if a file has changed, OSError, and any
    other error if the manifest is damaged."""
    facts, files = read_facts(folder)
    check(folder, files)
    return facts


def read_facts(folder: Path) -> tuple[Json, Json]:
    """The facts, and the digests of files that `check` takes. Raises as `read` does, but looks at no other file."""
    manifest = json.loads((folder / FILE).read_bytes())
    if manifest.pop("digest") != fingerprint.of_json(manifest):
        raise ValueError("its manifest has changed since it was written")
    return dict(manifest["facts"]), dict(manifest["files"])


def check(folder: Path, files: Json, *, samples: bool = True) -> None:
    """Raises ValueError if a file is not as it was written, and OSError."""
    found = _digests(folder, samples=samples)
    changed = sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name))
    if changed:
        raise ValueError(f"a file has changed since it was written: {', '.join(changed)}")


def size_of(folder: Path) -> int:
    """Bytes of the files that the manifest is of. Raises OSError."""
    return sum(file.stat().st_size for file in _files(folder))


def _digests(folder: Path, *, samples: bool) -> dict[str, str]:
    """Digests of every file but the manifest, by its path in the folder."""
    return {
        file.relative_to(folder).as_posix(): (
            fingerprint.sampled(file) if samples and _is_large(file) else fingerprint.whole(file)
        )
        for file in _files(folder)
    }


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and file != folder / FILE)


def _is_large(file: Path) -> bool:
    return file.stat().st_size > _MAX_WHOLE
