"""What a compiled model depends on: its key in this machine's cache, and what an entry that travels is held against."""

import dataclasses

from engine.cpu.choices import Choices
from engine.cpu.executors import openvino
from engine.cpu.outputs import steps_of
from engine.machine import host
from engine.model.arrays import weights_files
from engine.model.model_folder import ModelFolder, read_as
from engine.store import fingerprint
from engine.store.manifest import Json

CODE = "Embedline's code"  # among the versions of `parts`
SOURCES = (  # of ours
    "cpu/**/*.py",
    "machine/host.py",
    "model/**/*.py",
    "rows/*.py",
    "selftest/*.py",
    "transformers/configuration.py",
    "transformers/distance_bias.py",
    "transformers/headers.py",
    "transformers/loading.py",
    "transformers/models/*.py",
    "transformers/state.py",
)
_CONVERTING = ("torch", "transformers")
_TRAVELLING = ("embedline", *openvino.PACKAGES)  # where an entry is taken, what converted it may be missing


def local(folder: ModelFolder, choices: Choices) -> str:
    """The key in the cache. Costs milliseconds: see engine.store.fingerprint.key. Raises OSError."""
    return fingerprint.key(
        folder.path,
        packages=(*openvino.PACKAGES, *_CONVERTING),
        sources=SOURCES,
        choices={**dataclasses.asdict(choices), **read_as(folder), "cpu": host.cpu()},
        others=weights_files(folder.path, steps_of(folder)),
    )


def parts(folder: ModelFolder, choices: Choices) -> Json:
    """All that an entry that travels depends on, by name, but the model's files. The dtype is not among it, since
    either is made of float32, and nothing of the CPU is."""
    options = {name: value for name, value in dataclasses.asdict(choices).items() if name != "dtype"}
    return {
        "versions": {**fingerprint.versions(_TRAVELLING), CODE: fingerprint.source(SOURCES)},
        "options": options,
        "understood": fingerprint.of_json(read_as(folder)),
    }


def sums(folder: ModelFolder) -> dict[str, str]:
    """The SHA-256 of each of the model's files that count. Reads every byte. Raises OSError."""
    return fingerprint.sums(folder.path, weights_files(folder.path, steps_of(folder)))
