"""The identity of a model whose rows are stored somewhere: digests of its weights, its tokenizer and its settings.

The same files and settings give the same digests on every machine and at every path. Small weights are read whole. Of
large ones it reads samples, some MB in all, because reading all of them would take seconds at each start. Imports
neither torch nor transformers.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.model import lora
from engine.model.json_files import read_optional
from engine.model.known_code.known_code import COMMON
from engine.model.model_folder import ModelFolder
from engine.model.tasks import TOKEN_WEIGHTS_FILE, TokenVectors, TokenWeights
from engine.model.weights import Header, checkpoint_files, header_of, step_files
from engine.types import ModelError
from wire.files import read_whole

_FORMAT = 1  # of the digests: counted up when the same model gets others
_DIGITS = 16  # of a digest
_WHOLE = 192 << 20  # bytes of all weights: up to these, every byte is read
_BLOCK, _NUM_BLOCKS = 4096, 8  # bytes, and how many such are read of a large tensor, from its first to its last
_MANY_ROWS, _NUM_TABLE_BLOCKS = 20_000, 256  # tensors of so many rows are tables of words; how many blocks of these
_SMALL_ADAPTER, _NUM_BLOCKS_OF_ADAPTER = 1 << 20, 2  # bytes that are read whole; else blocks of each tensor
_CHUNK = 1 << 20  # bytes read at once
_PLAIN = ("float32", "bfloat16", "float16")  # in these, engines differ by rounding alone
# Keys of tokenizer_config.json that name places and versions.
_WITHOUT_EFFECT = frozenset(("_name_or_path", "name_or_path", "tokenizer_file", "transformers_version"))
# Keys of config.json that change no row by themselves: other fields of ModelFolder say what was read from them.
_NO_ROW = COMMON - {"tie_word_embeddings"}
# Fields of ModelFolder that change no row. Of `config` a part counts.
_NOT_SETTINGS = frozenset(
    (
        *("path", "config", "is_translated", "architectures", "notes", "tokenizer_folder"),
        *("max_seqlen_source", "pooling_source", "task_source"),
    )
)
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_OLD_TOKENIZER_FILE = "added_tokens.json"
# Keys of an adapter's configuration that name places and versions, or count in training alone.
_NO_NUMBER = lora.WITHOUT_EFFECT | {"base_model_name_or_path", "revision", "init_lora_weights"}
_CHAT_TEMPLATE = "chat_template.jinja"  # where it is not in tokenizer_config.json


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Digests, 16 hexadecimal digits each."""

    weights: str  # every tensor's name, dtype and shape, and its bytes or samples of them
    tokenizer: str  # tokenizer.json, byte by byte, and the other files that are read of the tokenizer and chat template
    settings: str  # config.json as it is understood, pooling, modules after it, lengths, prompts, heads, flags

    def fingerprint(self, *, dtype: str, engine: str) -> dict[str, str]:
        """The parts, the compute type and, as `id`, a digest of them all. `dtype` and `engine` are those of ModelInfo.

        Engines round differently, which does not count. Quantized ones differ by more, so the engine counts for them.
        """
        parts = {**dataclasses.asdict(self), "compute": dtype if dtype in _PLAIN else f"{dtype}, {engine}"}
        return {"id": _digest([_FORMAT, parts]), **parts}


def identify(folder: ModelFolder, *, flags: Mapping[str, str], stand_in: str = "") -> Identity:
    """Identify a model as it is served. `flags` are settings that are not of the folder. `stand_in` replaces the
    weights, for an engine that reads none. Raises ModelError where a file can't be read."""
    try:
        weights = stand_in or _digest(dict(_tensors(folder)))
        settings = {name: value for name, value in _plain(folder).items() if name not in _NOT_SETTINGS}
        settings["config"] = {name: value for name, value in folder.config.items() if name not in _NO_ROW}
        is_in_a_file = settings.pop("prompts_source", "config.json") == "config.json"
        # A card's are found by the model's name, which does not count; empty ones are as good as none.
        settings["prompts"] = {name: prompt for name, prompt in folder.prompts.items() if prompt and is_in_a_file}
        return Identity(weights, _tokenizer(folder.weights_folder), _digest([settings, dict(flags)]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder.path} has a file that can't be read: {type(error).__name__}") from error


def with_adapter(base: Identity, folder: Path, *, settings: Mapping[str, object]) -> Identity:
    """The identity of a model with the LoRA adapter of a folder. `settings` are the adapter's own in place of the
    model's. Raises ModelError where a file can't be read."""
    try:
        said = read_optional(folder / lora.CONFIG).items()
        # of one version all keys are there, and of others those with an effect
        config = {name: value for name, value in said if name not in _NO_NUMBER and value not in (None, False, {}, [])}
        file = folder / lora.WEIGHTS
        found = dict(_of_adapter(file)) if file.is_file() else {}
        changed = _digest([base.settings, dict(settings)]) if settings else base.settings
        return dataclasses.replace(base, weights=_digest([base.weights, config, found]), settings=changed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder} has a file that can't be read: {type(error).__name__}") from error


def _of_adapter(file: Path) -> Iterator[tuple[str, list[object]]]:
    """As `_tensors`. There may be a hundred adapters, so of each that is not small little is read."""
    num_blocks = 0 if file.stat().st_size <= _SMALL_ADAPTER else _NUM_BLOCKS_OF_ADAPTER
    return _tensors_in(file, header_of(file), of_tables=num_blocks, of_others=num_blocks)


def _tokenizer(folder: Path) -> str:
    file = folder / "tokenizer.json"
    whole = hashlib.sha256(read_whole(file)).hexdigest() if file.is_file() else ""
    read = (read_optional(folder / name) for name in _TOKENIZER_FILES)
    parts = [{name: value for name, value in config.items() if name not in _WITHOUT_EFFECT} for config in read]
    return _digest([whole, *parts, *filter(None, _others(folder, parts[0]))])


def _others(folder: Path, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Settings that most folders lack and the tokenizer reads; {} where there are none. config: of the tokenizer."""
    yield read_optional(folder / _OLD_TOKENIZER_FILE)
    template = folder / _CHAT_TEMPLATE
    yield {_CHAT_TEMPLATE: hashlib.sha256(read_whole(template)).hexdigest()} if template.is_file() else {}
    named = {"tokenizer_class": read_optional(folder / "config.json").get("tokenizer_class")}
    yield named if named["tokenizer_class"] and not config.get("tokenizer_class") else {}


def _tensors(folder: ModelFolder) -> Iterator[tuple[str, list[object]]]:
    """The name of each tensor, and what identifies it. Which of the model's shards it is in does not count."""
    shards = checkpoint_files(folder.weights_folder)
    headers = {file: header_of(file) for file in filter(Path.is_file, dict.fromkeys((*shards, *files_beside(folder))))}
    begins_and_ends = (tensor["data_offsets"] for header in headers.values() for tensor in header.tensors.values())
    is_small = sum(end - begin for begin, end in begins_and_ends) <= _WHOLE
    of_tables, of_others = (0, 0) if is_small else (_NUM_TABLE_BLOCKS, _NUM_BLOCKS)
    for file, header in headers.items():
        where = "" if file in shards else file.relative_to(folder.path).as_posix()
        for name, identity in _tensors_in(file, header, of_tables=of_tables, of_others=of_others):
            yield f"{where}:{name}", identity


def files_beside(folder: ModelFolder) -> list[Path]:
    """The files that have tensors of the model beside its own: of modules, of heads, of a table of queries, of
    adapters."""
    heads = [step for head in folder.heads if isinstance(head, TokenVectors) for step in head.steps]
    found = step_files(folder.path, (*folder.steps, *heads))
    if any(isinstance(head, TokenWeights) for head in folder.heads):
        found.append(folder.path / TOKEN_WEIGHTS_FILE)
    if folder.query_table is not None:
        found.append(folder.path / folder.query_table.folder / "model.safetensors")
    return found + folder.adapter_files


def _tensors_in(file: Path, header: Header, *, of_tables: int, of_others: int) -> Iterator[tuple[str, list[object]]]:
    """`of_tables` and `of_others` are how many blocks are read of a tensor, 0 = all of it."""
    with file.open("rb", buffering=0) as opened:
        for name, tensor in header.tensors.items():
            begin, end = tensor["data_offsets"]
            is_table = tensor["shape"][:1] > [_MANY_ROWS]
            blocks = _blocks(end - begin, of_tables if is_table else of_others)
            digest = hashlib.sha256()
            for place, size in blocks:
                digest.update(os.pread(opened.fileno(), size, header.end + begin + place))
            yield name, [tensor["dtype"], tensor["shape"], digest.hexdigest()]


def _blocks(num_bytes: int, num_blocks: int) -> Iterator[tuple[int, int]]:
    """Place and size of what is read of a tensor: so many blocks, or all bytes if it is 0 or they are few."""
    if num_blocks == 0 or num_bytes <= _BLOCK * num_blocks:
        return ((place, min(_CHUNK, num_bytes - place)) for place in range(0, num_bytes, _CHUNK))
    last = num_bytes - _BLOCK
    return ((last * number // (num_blocks - 1), _BLOCK) for number in range(num_blocks))


def _plain(value: Any) -> Any:
    """The value as JSON has it. Fields that have their default are left out, so that a new one changes no digest."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: (getattr(value, field.name), field.default) for field in dataclasses.fields(value)}
        changed = {name: _plain(own) for name, (own, default) in fields.items() if own != default}
        return {**changed, "kind": type(value).__name__}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return value


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]
