"""What a compiled model depends on, as a key for the cache. Imports none of the libraries whose versions it reads."""

import hashlib
import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from engine.compiled import machine

_BLOCK = 64 << 10  # bytes
_NUM_BLOCKS = 64  # read of each file of weights
_CONVERTING = ("torch", "transformers")
_ENGINE = Path(__file__).parents[1]
_SOURCES = ("compiled/*.py", "model_folder.py", "sentence_files.py", "transformers/loading.py")  # of what it is made by


def key(folder: Path, *, packages: Iterable[str], choices: dict[str, str]) -> str:
    """32 hexadecimal digits. `packages` compile the model, `choices` are what else it is compiled for."""
    parts = [_model_files(folder), _versions((*packages, *_CONVERTING)), _source(), machine.cpu(), choices]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _model_files(folder: Path) -> dict[str, str]:
    """A digest of config.json and of each file of weights, by name.

    config.json is read whole. Of weights it is the size, the time of the last change in nanoseconds, and 64 blocks of
    64 KiB spread evenly from the first byte to the last: files of gigabytes would take seconds to read. What changes
    a file in place changes its time; what brings other weights under an old time differs in nearly every byte.
    """
    digests = {"config.json": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()}
    return digests | {file.name: _sampled(file) for file in folder.glob("*.safetensors")}


def _sampled(file: Path) -> str:
    status = file.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
    last = max(0, status.st_size - _BLOCK)
    with file.open("rb", buffering=0) as stream:
        for number in range(_NUM_BLOCKS):
            stream.seek(last * number // (_NUM_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def _versions(packages: Iterable[str]) -> dict[str, str]:
    installed = {package: list(metadata.distributions(name=package)) for package in packages}
    return {package: found[0].version if found else "" for package, found in installed.items()}


def _source() -> str:
    """Of what reads, converts and tests: with another version of it, no old form is taken."""
    digest = hashlib.sha256()
    for file in sorted(file for pattern in _SOURCES for file in _ENGINE.glob(pattern)):
        digest.update(file.read_bytes())
    return digest.hexdigest()
