"""The files that a model's folder must have by its own files: for folders that may have been fetched in part, and
for those in which a file that is read has only its placeholder.

Each is a group of names: one of them is enough, and the first is what its repository is asked for. Reads no weights.
A file that names others and is wrong names none: who reads the model says what is wrong.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from engine.model.json_files import object_in, read_object
from engine.model.known_code import kalm
from engine.model.lora import CONFIG as ADAPTER_CONFIG
from engine.model.lora import WEIGHTS as ADAPTER_WEIGHTS
from engine.model.modules import Module, read_chain, read_entries
from engine.model.sentence_files import CONFIG, TRANSFORMER_FILES
from engine.types import ModelError
from wire.placeholder import placeholder

MODULES = "modules.json"
Group = tuple[str, ...]

_TRANSFORMERS = ("Transformer", "MLMTransformer")
_WITH_CONFIG = (*_TRANSFORMERS, "Pooling", "SpladePooling", "LogitScore", "MultiVectorMask", "Dense", "LayerNorm")
_WITH_TOKENIZER = (*_TRANSFORMERS, "StaticEmbedding", "SparseStaticEmbedding")
WITH_WEIGHTS = (*_WITH_TOKENIZER, "Dense", "LayerNorm")
_ROUTERS = ("Router", "Asym")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_PLAIN = Module(kind=_TRANSFORMERS[0], path=PurePosixPath())  # without modules.json
_OF_THE_MODEL = (MODULES, CONFIG, kalm.OPTIONS, "artifact.metadata")
_OF_MODULES = (
    *("config.json", "router_config.json", ADAPTER_CONFIG, "hf_quant_config.json", *TRANSFORMER_FILES),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json"),
)
_HEADS = tuple(f"{name}_linear.{suffix}" for name in ("sparse", "colbert") for suffix in ("safetensors", "pt"))


def needed_files(folder: Path) -> Iterator[Group]:
    """Files without which the model can't be read."""
    for module in all_modules(folder):
        path = module.path
        if module.kind in _TRANSFORMERS and (folder / path / ADAPTER_CONFIG).is_file():
            yield (str(path / ADAPTER_WEIGHTS),)  # the rest is its base's
            continue
        if module.kind in _ROUTERS:
            yield str(path / "router_config.json"), str(path / "config.json")
        if module.kind in _WITH_CONFIG:
            yield (str(path / "config.json"),)
        if module.kind in _WITH_TOKENIZER:
            yield (str(path / "tokenizer.json"),)
        if module.kind in WITH_WEIGHTS:
            yield from _weights(folder, path)


def telling_files(folder: Path) -> Iterator[Group]:
    """Files that many models lack, and without which those that have them would be served otherwise."""
    yield (MODULES,)
    has_modules = (folder / MODULES).is_file()
    if has_modules:
        yield (CONFIG,)
    for module in all_modules(folder):
        if module.kind in _TRANSFORMERS and not (folder / module.path / ADAPTER_CONFIG).is_file():
            yield (str(module.path / "tokenizer_config.json"),)
            if has_modules:
                yield tuple(str(module.path / name) for name in TRANSFORMER_FILES)


def all_modules(folder: Path) -> tuple[Module, ...]:
    """The modules of modules.json, and of its Routers; one Transformer where there is no modules.json."""
    if not (folder / MODULES).is_file():
        return (_PLAIN,)
    entries: tuple[Module, ...] = ()
    with contextlib.suppress(ModelError):
        entries = read_entries(folder)
        found = read_chain(folder)
        table = (Module(kind="SparseStaticEmbedding", path=found.query_table),) if found.query_table else ()
        entries = tuple(dict.fromkeys((*entries, *found.modules, *table)))
    return entries


def _weights(folder: Path, path: PurePosixPath) -> Iterator[Group]:
    """The weights of one folder: a file, or the shards that an index names; where there are no safetensors, pickles."""
    for name in _WEIGHTS:
        index = folder / path / f"{name}.index.json"
        if (folder / path / name).is_file():
            return
        if index.is_file():
            with contextlib.suppress(ModelError):
                shards = {str(shard) for shard in object_in(read_object(index), "weight_map").values()}
                yield from ((str(path / shard),) for shard in sorted(shards))
            return
    yield tuple(str(path / name) for name in _WEIGHTS)


def check_placeholders(folder: Path, *, needs_weights: bool = True) -> None:
    """Raises ModelError. Files that are not read may have placeholders."""
    for file in _OF_THE_MODEL:  # first: modules.json says where others are
        _check(folder / file)
    for path in dict.fromkeys((PurePosixPath(), *(module.path for module in all_modules(folder)))):
        for file in _OF_MODULES:
            _check(folder / path / file)
        if needs_weights:
            for file in _names_of_weights(folder / path):
                _check(folder / path / file)


def _check(file: Path) -> None:
    if found := placeholder(file):
        raise ModelError(found)


def _names_of_weights(folder: Path) -> Iterator[str]:
    """Names of the files that hold weights; pickles only where there are no safetensors."""
    yield from (*_HEADS, ADAPTER_WEIGHTS)
    for name in _WEIGHTS:
        index = f"{name}.index.json"
        yield from (name, index)
        if (folder / name).is_file():
            return
        if (folder / index).is_file():
            yield from sorted(map(str, object_in(read_object(folder / index), "weight_map").values()))
            return
