"""Portable compiled models: what `embedline compile` writes and a start on another machine takes. Imports no torch.

Such a folder has OpenVINO's graph and its weights in float32 or int8, from which any CPU makes what it computes with;
the sequences of the self-test with the original's rows, so that it is run again there without the original; and a
manifest with the SHA-256 of each of these files and of the model's own. Nothing in it depends on a CPU.
"""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.cpu import converted as converted_file
from engine.cpu import openvino
from engine.cpu.converted import Converted
from engine.cpu.lora import inputs_of
from engine.cpu.offer import CompileOptions
from engine.cpu.outputs import steps_of
from engine.model.model_folder import ModelFolder, read_as
from engine.model.weights import step_files
from engine.store import fingerprint, manifest
from engine.store.manifest import Json

# The folder's format. Raise it when the same model would have another graph or other rows in it, or what is read here
# would stand elsewhere.
_FORMAT = 2
_UNNUMBERED = 0  # the format of folders that were written before formats were counted


def write(target: Path, converted: Converted, folder: ModelFolder, compile_options: CompileOptions) -> str:
    """Add to a folder with a converted model what makes it a portable entry. Returns its key. Raises OSError."""
    made_for = {"format": _FORMAT, **_key_parts(folder, compile_options), "files": _file_sums(folder)}
    if folder.loras:
        made_for["loras"] = inputs_of(folder.loras)
    converted_file.write(target, converted)
    manifest.write(target, {"made_for": made_for}, samples=False)
    return fingerprint.of_json(made_for)


def read(entry: Path, folder: ModelFolder, compile_options: CompileOptions) -> Converted:
    """Return what `write` was given, once every byte of the entry and of the model is what it was then. Raises
    ValueError if it is for something else or has changed, OSError, and any other error if it is damaged."""
    facts, files = manifest.read_facts(entry)
    made_for = facts["made_for"]
    _check_parts(made_for, _key_parts(folder, compile_options))
    if made_for.get("loras", []) != inputs_of(folder.loras):
        raise ValueError("it was made for adapters (--lora) of other layers, or for none")
    with ThreadPoolExecutor(1) as beside:  # SHA-256 leaves the interpreter to others
        sums = beside.submit(_file_sums, folder)
        manifest.check(entry, files, samples=False)
        found, wanted = made_for["files"], sums.result()
    if other := sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)):
        raise ValueError(f"it is of a model with another {', '.join(other)}")
    return converted_file.read(entry)


def _check_parts(found: Json, wanted: Json) -> None:
    """Raises ValueError with the first difference."""
    if (number := found.get("format", _UNNUMBERED)) != _FORMAT:
        raise ValueError(f"it is of format {number}, and this version of Embedline reads format {_FORMAT}")
    for package, version in wanted["versions"].items():
        other = found["versions"].get(package)
        if other != version:
            raise ValueError(f"{package} {other} made it, and this is {version}")
    for option, value in wanted["options"].items():
        if found["options"].get(option) != value:
            raise ValueError(f"it was made for {option} {found['options'].get(option)!r}, and this is {value!r}")
    if found["understood"] != wanted["understood"]:
        raise ValueError("it is of a model with another config.json")


def _key_parts(folder: ModelFolder, compile_options: CompileOptions) -> Json:
    """The parts of a portable entry's key, by name; its format and the model's files are compared apart.

    It leaves out the dtype, since both dtypes are made of the same weights; the CPU, on which nothing in the entry
    depends; and torch and transformers, which a machine that takes an entry may lack.
    """
    options = {name: value for name, value in dataclasses.asdict(compile_options).items() if name != "dtype"}
    return {
        "versions": fingerprint.versions(openvino.PACKAGES),
        "options": options,
        "understood": fingerprint.of_json(read_as(folder)),
    }


def _file_sums(folder: ModelFolder) -> dict[str, str]:
    """The SHA-256 of each of the model's files that count. Reads every byte. Raises OSError."""
    return fingerprint.sums(folder.path, [*step_files(folder.path, steps_of(folder)), *folder.adapter_files])
