"""Digests of files, and keys of models: digests of all that they were made from.

A model in the cache of one machine has a cheap key. What goes to another machine has whole SHA-256 sums.

Imports none of the libraries whose versions it reads.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

_SMALL = ("config.json", "hf_quant_config.json")
_INDEX_AND_TOKENIZER = ("model.safetensors.index.json", "tokenizer.json")
_BLOCK = 64 << 10  # bytes
_NUM_BLOCKS = 64


def key(
    folder: Path,
    *,
    format_number: int,
    packages: Iterable[str],
    choices: Mapping[str, object],
    others: Iterable[Path] = (),
) -> str:
    """32 hexadecimal digits for what is made from a model's `folder`.

    format_number: of what is made, as our code makes it: see tests/structure/cache_formats.py
    packages:      names of installed packages whose versions count
    choices:       all else that it is made for, fit for JSON
    others:        files of the model in subfolders

    Raises OSError where a file can't be read.
    """
    return of_json([format_number, _model_files(folder, others), versions(packages), dict(choices)])[:32]


def of_json(values: object) -> str:
    """A digest of what is fit for JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _model_files(folder: Path, others: Iterable[Path]) -> dict[str, str]:
    """A digest of each file that says what the model is, by name.

    Small files are read whole. Weights and the tokenizer count by samples and the time of the last change, because
    reading gigabytes would take seconds. A change in place changes that time; other weights with the same time differ
    in nearly every byte.
    """
    small = (folder / name for name in _SMALL)
    found = {file.name: whole(file) for file in small if file.is_file()}
    timed = {
        str(file.relative_to(folder)): f"{file.stat().st_mtime_ns} {sampled(file)}" for file in _large(folder, others)
    }
    return found | timed


def sums(folder: Path, others: Iterable[Path] = ()) -> dict[str, str]:
    """The SHA-256 of every byte of the files that `key` counts, by their path in the folder. Raises OSError."""
    files = [*(folder / name for name in _SMALL), *_large(folder, others)]
    return {file.relative_to(folder).as_posix(): whole(file) for file in files if file.is_file()}


def _large(folder: Path, others: Iterable[Path]) -> list[Path]:
    found = (*folder.glob("*.safetensors"), *others, *(folder / name for name in _INDEX_AND_TOKENIZER))
    return [file for file in found if file.is_file()]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of installed packages by name; "" of one that is not installed."""
    from importlib import metadata  # takes long to import, and the supervisor, which imports this file, asks for none

    installed = {package: list(metadata.distributions(name=package)) for package in packages}
    return {package: found[0].version if found else "" for package, found in installed.items()}


def whole(file: Path) -> str:
    """A digest of every byte. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sampled(file: Path) -> str:
    """A digest of the size and of 64 blocks of 64 KiB, evenly from the first byte to the last. Raises OSError."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    last = max(0, size - _BLOCK)
    with file.open("rb", buffering=0) as stream:
        for number in range(_NUM_BLOCKS):
            stream.seek(last * number // (_NUM_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()
