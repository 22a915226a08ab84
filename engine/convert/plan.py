"""Plans which files of a model's folder are converted, copied and left out, by their names. Opens no weights.

The folder may be hostile: a link out of it, or something that is no regular file, ends the conversion. A server asks
which weights must be converted before it can read the folder; a `*.pt` or `*.bin` file that no module of the model
reads does not count.
"""

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.model.detection.needed_files import WITH_WEIGHTS, all_modules, check_placeholders
from engine.model.detection.sparse import PICKLED_FILES as PICKLED_HEADS
from engine.model.json_files import object_in, read_object
from engine.model.lora import CONFIG as ADAPTER
from engine.model.weights import has_pickles, has_safetensors
from engine.store.hub_cache import TRAINING_FILES
from engine.types import ModelError

_COPIED = frozenset((".json", ".txt", ".model", ".safetensors", ".jinja", ".md"))
_COPIED_NAMES = frozenset(("artifact.metadata", "int8_ranges.npy", "LICENSE", "LICENCE", "NOTICE"))
_OTHER_ENGINES = frozenset(("onnx", "openvino"))
_WEIGHTS, _STEM = "pytorch_model.bin", "model"
_INDEX = "pytorch_model.bin.index.json"
_MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class Target:
    """Weights that become one file of safetensors, or one set of shards."""

    sources: dict[str, Path]  # names in the folder (relative, with /) -> the files themselves
    shards: dict[str, str] | None  # tensor -> key in sources, as their index says; None = one file, all of it
    stem: str  # of the new file: relative to the folder, without ".safetensors"


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """The plan for all files of a folder."""

    targets: tuple[Target, ...]
    copied: dict[str, Path]  # relative name, with / -> the file itself
    left_out: tuple[str, ...]  # weights that are neither

    @property
    def num_source_bytes(self) -> int:
        """Bytes of all files that are converted."""
        return sum(path.stat().st_size for target in self.targets for path in target.sources.values())

    @property
    def num_copied_bytes(self) -> int:
        """Bytes of all files that are copied."""
        return sum(path.stat().st_size for path in self.copied.values())


def plan(folder: Path) -> ConversionPlan:
    """Plan all files of a folder. Raises ModelError if there is nothing to convert, or a file that is not allowed."""
    files = _files(folder)
    if not {"config.json", "modules.json"} & files.keys():
        raise ModelError(f"{folder} has no config.json, so it is not a model folder")
    copied = {name: path for name, path in files.items() if _is_copied(name)}
    targets = tuple(_targets(folder, files))
    if not targets:
        raise ModelError(
            f"{folder} has nothing to convert: no {_WEIGHTS} and no *.pt without its safetensors beside it"
        )
    converted = {name for target in targets for name in target.sources}
    unread = (name for name in files if name not in converted and PurePosixPath(name).suffix in (".bin", ".pt"))
    return ConversionPlan(targets, copied, tuple(sorted(unread)))


def copied_files(folder: Path) -> dict[str, Path]:
    """The files that are copied as they are: relative name, with / -> the file itself. Raises ModelError where the
    folder has something that is not allowed."""
    return {name: path for name, path in _files(folder).items() if _is_copied(name)}


def _files(folder: Path) -> dict[str, Path]:
    """Every file except those of other engines and tools: its relative name -> the file itself."""
    check_placeholders(folder)
    roots = _roots(folder)
    found: dict[str, Path] = {}
    for here, folders, names in os.walk(folder, onerror=_unreadable):
        for name in [*names, *(each for each in folders if Path(here, each).is_symlink())]:
            path = Path(here, name)
            found[path.relative_to(folder).as_posix()] = _real(path, roots)
        own = (name for name in folders if name not in _OTHER_ENGINES)
        folders[:] = sorted(name for name in own if not name.startswith((".", "checkpoint-")))  # of tools, of training
        if len(found) > _MAX_FILES:
            raise ModelError(f"{folder} has more than {_MAX_FILES:,} files")
    return {name: path for name, path in found.items() if path.is_file()}


def _unreadable(error: OSError) -> None:
    raise ModelError(f"{error.filename} can't be read: {error.strerror}") from error


def _roots(folder: Path) -> tuple[Path, ...]:
    """The folders where files may be: the folder itself, and the repository's blobs, to which the hub's cache links."""
    real = folder.resolve()  # people link to a snapshot
    blobs = real.parent.parent / "blobs"
    return (real, blobs.resolve()) if real.parent.name == "snapshots" else (real,)


def _real(path: Path, roots: tuple[Path, ...]) -> Path:
    if not path.name.isprintable():
        raise ModelError(f"{str(path)!r} has characters in its name that can't be shown")
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # the latter: links in a circle
        raise ModelError(f"{path} is a broken link") from error
    if not any(real.is_relative_to(root) for root in roots):
        raise ModelError(f"{path} is a link out of the model's folder")
    if not real.is_file() and not real.is_dir():
        raise ModelError(f"{path} is not a file")
    return real


def _is_copied(name: str) -> bool:
    path = PurePosixPath(name)
    if path.name.startswith(".") or path.name == _INDEX:
        return False
    return path.suffix in _COPIED or path.name in _COPIED_NAMES


def _targets(folder: Path, files: dict[str, Path]) -> Iterator[Target]:
    for prefix in sorted({name[: -len(PurePosixPath(name).name)] for name in files}):
        if _is_there(prefix + _STEM, files):
            continue
        if prefix + _WEIGHTS in files:
            yield Target({prefix + _WEIGHTS: files[prefix + _WEIGHTS]}, None, prefix + _STEM)
        elif prefix + _INDEX in files:
            yield _sharded(folder, files, prefix)
    heads = [name for name in sorted(files) if "/" not in name and name.endswith(".pt")]
    for name in heads:
        stem = name.removesuffix(".pt")
        if name not in TRAINING_FILES and not _is_there(stem, files) and stem != _STEM:
            yield Target({name: files[name]}, None, stem)


def _sharded(folder: Path, files: dict[str, Path], prefix: str) -> Target:
    index = read_object(files[prefix + _INDEX])
    shards = {name: f"{prefix}{shard}" for name, shard in object_in(index, "weight_map").items()}
    for shard in shards.values():
        if shard not in files or "/" in shard[len(prefix) :]:
            raise ModelError(f"{folder} lacks {shard!r}, which {prefix}{_INDEX} names")
    return Target({name: files[name] for name in sorted(set(shards.values()))}, shards, prefix + _STEM)


def _is_there(stem: str, files: dict[str, Path]) -> bool:
    """Whether the folder has these weights as safetensors already."""
    return f"{stem}.safetensors" in files or f"{stem}.safetensors.index.json" in files


def needed(folder: Path) -> ConversionPlan | None:
    """Plan what has to be converted; None = nothing. Raises ModelError if the folder has something that is not
    allowed."""
    folders = (PurePosixPath(), *(module.path for module in all_modules(folder)))
    pickled = [path for path in dict.fromkeys(folders) if has_pickles(folder / path)]
    stems = [str(path / "model") for path in pickled if not has_safetensors(folder / path)]
    heads = [PurePosixPath(name) for name in PICKLED_HEADS if (folder / name).is_file()]
    stems += [str(head.with_suffix("")) for head in heads if not (folder / head).with_suffix(".safetensors").is_file()]
    if not stems:
        return None
    planned = plan(folder)
    targets = tuple(target for target in planned.targets if target.stem in stems)
    return dataclasses.replace(planned, targets=targets) if targets else None


def patterns(folder: Path) -> tuple[str, ...]:
    """Patterns of the files that hold, as pickles, weights of which the folder has no safetensors."""
    weighty = dict.fromkeys(module.path for module in all_modules(folder) if module.kind in WITH_WEIGHTS)
    lacking = [path for path in weighty if not (has_safetensors(folder / path) or (folder / path / ADAPTER).is_file())]
    heads = PICKLED_HEADS if PurePosixPath() in lacking else ()
    return (*(str(path / "pytorch_model*.bin") for path in lacking), *heads)
