"""The dependencies of a compiled model: its key in this machine's cache, and those that an entry that travels must
match."""

import dataclasses

from engine.cpu import openvino
from engine.cpu.offer import CompileOptions
from engine.cpu.outputs import steps_of
from engine.machine import host
from engine.model.model_folder import ModelFolder, read_as
from engine.model.weights import weights_files
from engine.store import fingerprint
from engine.store.manifest import Json

# An entry's format. Raise it when the same model would have another graph, other rows, another result of the
# self-test, or other facts in the manifest.
_FORMAT = 1
_CONVERTING = ("torch", "transformers")


def cache_key(folder: ModelFolder, choices: CompileOptions) -> str:
    """The key in the cache. Costs milliseconds: see engine.store.fingerprint.key. Raises OSError."""
    return fingerprint.key(
        folder.path,
        format_number=_FORMAT,
        packages=(*openvino.PACKAGES, *_CONVERTING),
        choices={**dataclasses.asdict(choices), **read_as(folder), "cpu": host.cpu()},
        others=weights_files(folder.path, steps_of(folder)),
    )


def key_parts(folder: ModelFolder, choices: CompileOptions) -> Json:
    """All that an entry that travels depends on, by name, but its format and the model's files. The dtype is not among
    it, since either is made of float32, nothing of the CPU is, and where an entry is taken, what converted it may be
    missing."""
    options = {name: value for name, value in dataclasses.asdict(choices).items() if name != "dtype"}
    return {
        "versions": fingerprint.versions(openvino.PACKAGES),
        "options": options,
        "understood": fingerprint.of_json(read_as(folder)),
    }


def file_sums(folder: ModelFolder) -> dict[str, str]:
    """The SHA-256 of each of the model's files that count. Reads every byte. Raises OSError."""
    return fingerprint.sums(folder.path, weights_files(folder.path, steps_of(folder)))
