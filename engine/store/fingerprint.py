"""What a kept model depends on, as a key for the cache. Imports none of the libraries whose versions it reads."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from engine.store import digests

_ENGINE = Path(__file__).parents[1]


def key(
    folder: Path,
    *,
    packages: Iterable[str],
    sources: Iterable[str],
    choices: Mapping[str, object],
    others: Iterable[Path] = (),
) -> str:
    """32 hexadecimal digits. `packages` and `sources` make the model out of the folder's files and those `others` in
    folders of its own, `choices` are what else it is made for, and fit into JSON; for sources see `source`. Raises
    OSError where a file can't be read."""
    parts = [_model_files(folder, others), _versions(packages), source(sources), dict(choices)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def source(patterns: Iterable[str]) -> str:
    """Of our own files of these patterns, beginning in engine/: with another version of them, no old form is taken."""
    digest = hashlib.sha256()
    files = [sorted(_ENGINE.glob(pattern)) for pattern in patterns]
    assert all(files), "a pattern matches no file"
    for file in sorted({file for found in files for file in found}):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _model_files(folder: Path, others: Iterable[Path]) -> dict[str, str]:
    """A digest of each file that says what the model is, by name.

    Small ones are read whole. Of weights and of the tokenizer it is the time of the last change in nanoseconds and
    samples: files of gigabytes would take seconds to read. What changes a file in place changes its time; what brings
    other weights under an old time differs in nearly every byte.
    """
    small = (folder / name for name in ("config.json", "hf_quant_config.json"))
    large = (*folder.glob("*.safetensors"), *others, folder / "model.safetensors.index.json", folder / "tokenizer.json")
    found = {file.name: digests.whole(file) for file in small if file.is_file()}
    timed = {
        str(file.relative_to(folder)): f"{file.stat().st_mtime_ns} {digests.sampled(file)}"
        for file in large
        if file.is_file()
    }
    return found | timed


def _versions(packages: Iterable[str]) -> dict[str, str]:
    installed = {package: list(metadata.distributions(name=package)) for package in packages}
    return {package: found[0].version if found else "" for package, found in installed.items()}
