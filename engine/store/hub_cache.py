"""Finds a model in the hub's cache folder, and says which files of a repository it lacks. Never uses the network.

The library could find it too (snapshot_download with local_files_only), but importing that takes 0.16 s of CPU time
(huggingface_hub 2.4), at every start of every server. This file needs only the layout of the folder, and it also checks
that no file is missing.
"""

import json
import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from engine.model.detection.needed_files import MODULES, Group, needed_files, telling_files
from engine.model.weights import check_forms
from engine.types import ModelError

# Only what can't run code; other engines' copies of the same model are left out.
_NEEDED_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "artifact.metadata")
ALLOW_PATTERNS = (*_NEEDED_PATTERNS, "README.md")  # a model without its card is whole: the hub is not asked for that
PICKLED_PATTERNS = ("*.bin", "*.pt")  # what can run code, for a conversion alone: `more` in this package
TRAINING_FILES = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.bin", "scheduler.pt", "scaler.pt")
IGNORE_PATTERNS = ("onnx/*", "openvino/*", *TRAINING_FILES)
_OF_A_WHOLE_DOWNLOAD = ".gitattributes"  # every repository has it, and who fetches files one by one does not want it
_NOTES_OF_FILES = Path(".cache", "huggingface", "download")  # of the library, on each file that it put into a folder
_MAX_NAMED = 3  # files in a message


def find_snapshot(cache_dir: Path, model_id: str, revision: str | None, *, more: Sequence[str] = ()) -> Path | None:
    """The folder of this commit, branch or tag, if no file is missing in it. Its name is the commit.

    Files with the patterns `more` must be there too; where nobody knows which there are, one with the first of them.

    The layout is models--owner--name/ with refs/<branch>, snapshots/<commit>/…, trees/<commit>.json and
    .no_exist/<commit>/… (huggingface_hub, "Understand caching").
    """
    snapshot = snapshot_in_part(cache_dir, model_id, revision)
    return snapshot if snapshot and _is_whole(snapshot, more) else None


def snapshot_in_part(cache_dir: Path, model_id: str, revision: str | None) -> Path | None:
    """Like `find_snapshot`, whatever is missing."""
    repository = Path(os.path.expanduser(cache_dir)).absolute() / f"models--{model_id.replace('/', '--')}"
    for commit in (revision, _commit(repository / "refs" / (revision or "main"))):
        if commit and "/" not in commit and any((repository / "snapshots" / commit).glob("*.json")):
            return repository / "snapshots" / commit
    return None


def is_needed(file: str, more: Sequence[str] = ()) -> bool:
    """Whether a snapshot that lacks this file of its repository is not whole."""
    return _matches(file, (*_NEEDED_PATTERNS, *more)) and not _matches(file, IGNORE_PATTERNS)


def check_snapshot(folder: Path, *, needs_modules: bool = True, more: Sequence[str] = ("*",)) -> None:
    """Raises ModelError if the folder lacks files that its repository has, or may have: nobody completes it. Also where
    there are no weights that are read.

    That can be told of the hub's cache, and of what its library put into another folder. Other folders are whole.

    needs_modules: False where flags say what modules.json would. more: patterns of the files that can run code and must
    be there too.
    """
    snapshot = folder.resolve()
    listed = _listed(_listing_of(snapshot))
    check_forms(snapshot, listed)
    if listed is None and not _is_in_cache(snapshot) and not (snapshot / _NOTES_OF_FILES).is_dir():
        return
    is_whole_else = listed is None and _is_downloaded(snapshot)
    telling = () if is_whole_else else telling_files(snapshot)
    groups = [group for group in telling if needs_modules or group != (MODULES,)]
    needed = listed and [file for file in listed if is_needed(file, more)]
    if missing := _missing(snapshot, [*groups, *needed_files(snapshot)], needed):
        raise _incomplete(snapshot, missing, is_certain=listed is not None)


def _is_whole(snapshot: Path, more: Sequence[str]) -> bool:
    """Whether no file is missing: a download may have ended early, and some programs fetch files one by one."""
    listed = _listed(_listing_of(snapshot))
    if listed is not None:
        return all((snapshot / file).is_file() for file in listed if is_needed(file, more))
    # Older libraries keep no listing.
    if more and not any(file.is_file() for file in snapshot.glob(more[0])):
        return False
    return not _missing(snapshot, [*telling_files(snapshot), *needed_files(snapshot)], None)


def _missing(snapshot: Path, groups: Iterable[Group], listed: Sequence[str] | None) -> list[str]:
    """A file of each group that has none here, unless it is known that the repository has none either."""
    lacking = [group for group in groups if not any((snapshot / name).is_file() for name in group)]
    if listed is not None:
        return [name for group in lacking for name in group if name in listed]
    # A mark says that somebody asked for a file that the repository does not have.
    marks = snapshot.parent.parent / ".no_exist" / snapshot.name
    return [group[0] for group in lacking if not (marks / group[0]).is_file()]


def _is_in_cache(snapshot: Path) -> bool:
    return snapshot.parent.name == "snapshots" and snapshot.parent.parent.name.startswith("models--")


def _listing_of(snapshot: Path) -> Path:
    """The library's listing of it. A folder with several downloads has several, and nobody knows which is its own."""
    if _is_in_cache(snapshot):
        return snapshot.parent.parent / "trees" / f"{snapshot.name}.json"
    found = list((snapshot / ".cache" / "huggingface" / "trees").glob("*.json"))
    return found[0] if len(found) == 1 else snapshot / "no listing"


def _is_downloaded(snapshot: Path) -> bool:
    """Whether the whole repository was fetched, as far as can be told without a listing."""
    where = snapshot.parent.parent / "blobs" if _is_in_cache(snapshot) else snapshot / _NOTES_OF_FILES
    return (snapshot / _OF_A_WHOLE_DOWNLOAD).is_file() and not any(where.rglob("*.incomplete"))


def _incomplete(snapshot: Path, missing: Sequence[str], *, is_certain: bool) -> ModelError:
    named = ", ".join(missing[:_MAX_NAMED]) + (f" and {len(missing) - _MAX_NAMED} more" if missing[_MAX_NAMED:] else "")
    name = "/".join(snapshot.parent.parent.name.split("--")[1:]) if _is_in_cache(snapshot) else "its repository"
    doubt = ""
    if not is_certain and MODULES in missing:
        doubt = (
            f"; if there is no {MODULES}, --pooling says how rows are pooled, or --task that it is a reranker or a "
            "classifier"
        )
    return ModelError(
        f"{snapshot} was fetched in part: it {'lacks' if is_certain else 'may lack'} {named}; fetch all of {name} with "
        f"`hf download` where the hub can be reached{doubt}"
    )


def _matches(file: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(file, pattern) for pattern in patterns)


def _commit(reference: Path) -> str:
    try:
        return reference.read_text().strip()
    except (OSError, ValueError):
        return ""


def _listed(listing: Path) -> list[str] | None:
    """All files of the repository at that commit; None where no listing was kept."""
    try:
        value = json.loads(listing.read_bytes())
        return [str(file) for file in value["files"]] if value["format_version"] == 1 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
