"""Finds a model in the hub's cache folder, and says which files of a repository are fetched. Never uses the network.

The library could find it too (snapshot_download with local_files_only), but importing that takes 0.16 s of CPU time
(huggingface_hub 2.4), at every start of every server. This file needs only the layout of the folder, and it also checks
that no file is missing.
"""

import json
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

# Only what can't run code; other engines' copies of the same model are left out.
_NEEDED_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "artifact.metadata")
ALLOW_PATTERNS = (*_NEEDED_PATTERNS, "README.md")  # a model without its card is whole: the hub is not asked for that
PICKLED_PATTERNS = ("*.bin", "*.pt")  # what can run code, for a conversion alone: `more` in this package
TRAINING_FILES = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.bin", "scheduler.pt", "scaler.pt")
IGNORE_PATTERNS = ("onnx/*", "openvino/*", *TRAINING_FILES)


def find_snapshot(cache_dir: Path, model_id: str, revision: str | None, *, more: Sequence[str] = ()) -> Path | None:
    """The folder of this commit, branch or tag, if no file is missing in it. Its name is the commit.

    Files with the patterns `more` must be there too; where nobody knows which there are, one with the first of them.

    The layout is models--owner--name/ with refs/<branch>, snapshots/<commit>/… and trees/<commit>.json
    (huggingface_hub, "Understand caching").
    """
    repository = Path(os.path.expanduser(cache_dir)).absolute() / f"models--{model_id.replace('/', '--')}"
    for commit in (revision, _commit(repository / "refs" / (revision or "main"))):
        if commit and "/" not in commit and any((repository / "snapshots" / commit).glob("*.json")):
            snapshot = repository / "snapshots" / commit
            listing = repository / "trees" / f"{commit}.json"
            return snapshot if _is_whole(snapshot, listing, more) else None
    return None


def is_needed(file: str, more: Sequence[str] = ()) -> bool:
    """Whether a snapshot that lacks this file of its repository is not whole."""
    return _matches(file, (*_NEEDED_PATTERNS, *more)) and not _matches(file, IGNORE_PATTERNS)


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in patterns)


def _commit(reference: Path) -> str:
    try:
        return reference.read_text().strip()
    except (OSError, ValueError):
        return ""


def _is_whole(snapshot: Path, listing: Path, more: Sequence[str]) -> bool:
    """Whether no file is missing: a download may have ended early, and some programs fetch files one by one."""
    files = _listed(listing)
    if files is not None:
        return all((snapshot / file).is_file() for file in files if is_needed(file, more))
    # Older libraries keep no listing. With these files there, nothing is missing that would be guessed wrongly.
    needed = ("config.json", "modules.json", "*/config.json", more[0] if more else "*.safetensors")
    return all(any(snapshot.glob(pattern)) for pattern in needed)


def _listed(listing: Path) -> list[str] | None:
    """All files of the repository at that commit; None where no listing was kept."""
    try:
        value = json.loads(listing.read_bytes())
        return [str(file) for file in value["files"]] if value["format_version"] == 1 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
