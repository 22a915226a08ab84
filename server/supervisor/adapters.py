"""The LoRA adapters of --lora, checked before any process is started.

An adapter's folder is what PEFT saved, or sentence-transformers beside it: with the prompts, the modules and the
tokenizer of the whole model. Its prompts and its length are its own. The rest must be the model's, which computes it:
what differs is refused by the name of its file, because rows would be others than the library's in silence.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine import registry
from engine.model.identity import Identity, with_adapter
from engine.model.json_files import read_optional
from engine.model.lora import CONFIG as CONFIG_OF_ADAPTER
from engine.model.lora import WEIGHTS, Adapter, check_apart, merge_it, read_adapter
from engine.model.model_folder import ModelFolder
from engine.model.modules import Chain, Module, read_chain
from engine.model.sentence_files import (
    CONFIG,
    TOKENIZER_CONFIG,
    TRANSFORMER_FILES,
    Prompts,
    SentenceFiles,
    read_cuts,
    read_length,
    read_modules,
    read_prompts,
)
from engine.model.tasks import Task
from engine.model.weights import PLAIN, step_files, tensors_in
from engine.types import ModelError
from server.requests.prompts import NEWEST, PURPOSES
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from server.supervisor.adapter_bases import check_base
from tokenizer_pool.messages import TokenizerSpec
from wire.control import Json
from wire.tokenizer_files import TokenizerError

_TOKENIZER, _WEIGHTS = "tokenizer.json", "model.safetensors"
# What a model without modules.json may be for, that an adapter with them fits.
_TASKS: Mapping[Chain | None, tuple[Task, ...]] = {
    Chain.EMBED: (Task.EMBED,),
    Chain.SPARSE: (Task.SPARSE,),
    Chain.SCORES: (Task.RERANK, Task.CLASSIFY),
    Chain.ANSWER: (Task.RERANK,),
}
# Of modules without weights that change rows: what they do where their files do not say it, and keys without effect.
_DEFAULTS: Mapping[str, Json] = {"SpladePooling": {"pooling_strategy": "max", "activation_function": "relu"}}
_SIZES = frozenset(("word_embedding_dimension", "embedding_dimension", "chunk_size"))
_POOLER = "pooler"
_RENAMED = frozenset(("Wqkv", "qkv_proj"))  # in such checkpoints, which transformers cuts up: nomic_bert, gte
_PROBE, _PROBE_TOKENS = "The ferry leaves at Seven.", 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """An adapter as it will be served."""

    name: str
    folder: str  # as --lora has it
    path: Path
    identity: Identity  # of the model with it
    prompts: Mapping[str, str]
    default_prompt: str  # put before each text
    max_seqlen: int  # tokens
    num_bytes: int  # of its weights; 0 = they are not there, for an engine that reads none
    note: str = ""  # about its base, where nothing here tells whether that is the model

    def facts(self, *, dtype: str, engine: str) -> Json:
        """What frontends know of it beside what they know of its model."""
        return {
            "name": self.name,
            "model_id": self.folder,
            "source": "--lora",
            "fingerprint": self.identity.fingerprint(dtype=dtype, engine=engine),
            "prompts": dict(self.prompts),
            "default_prompt": self.default_prompt,
            "max_seqlen": self.max_seqlen,
        }


def check_names(model: ModelSettings, folder: ModelFolder) -> None:
    """Raises SettingsError for a name that would mean something else behind the model's, and for a model that takes no
    adapters beside its own."""
    if model.loras and folder.adapters:
        raise SettingsError(f"--lora: the model has adapters of its own, by task ({', '.join(folder.adapters)})")
    for name, _ in model.loras:
        if name in folder.prompts:
            raise SettingsError(f"--lora {name} has the name of one of the model's prompts; call it something else")
        if name in PURPOSES or name == NEWEST:
            raise SettingsError(f"--lora {name} is a word that requests put behind a model's name; call it another")


def find_loras(
    model: ModelSettings, folder: ModelFolder, base: Identity, *, default_prompt: str, engine: str
) -> tuple[Lora, ...]:
    """The model's adapters in the order of their numbers. `folder`, `base` and `default_prompt` are the model's.
    engine: its name, or auto. Raises SettingsError and ModelError."""
    check_names(model, folder)
    layers = _LayersOfModel(folder) if model.loras and engine != registry.FAKE else None  # that one reads no weights
    found = []
    for name, given in model.loras:
        try:
            lora = _lora(name, given, model, folder, base, default_prompt)
            note = check_base(lora.path, model, folder, None if layers is None else base)
            if layers is not None:
                adapter = read_adapter(lora.path)
                check_apart(adapter, () if engine == registry.AUTO else registry.ENGINES[engine].not_of_loras)
                layers.check(adapter)
            found.append(replace(lora, note=note))
        except ModelError as error:
            raise ModelError(f"--lora {name}: {error}") from None
    return tuple(found)


def _lora(
    name: str, given: str, model: ModelSettings, folder: ModelFolder, base: Identity, default_prompt: str
) -> Lora:
    path = Path(given).expanduser().absolute()
    if not (path / CONFIG_OF_ADAPTER).is_file():
        raise ModelError(f"{given} is not the folder of an adapter: it has no {CONFIG_OF_ADAPTER}")
    _check_tokenizer(path, folder)
    max_seqlen = _length(path, _modules(path, folder), folder)
    prompts = _prompts(path, folder)
    changed: dict[str, object] = {}
    if prompts is not None:
        own_default, own = _default_prompt(model, prompts), _said(prompts.by_name)
        if (own, own_default) != (_said(folder.prompts), default_prompt):
            changed = {"prompts": own, "default_prompt": own_default}
        default_prompt = own_default
    if max_seqlen != folder.max_seqlen:
        changed["max_seqlen"] = max_seqlen
    return Lora(
        name=name,
        folder=given,
        path=path,
        identity=with_adapter(base, path, settings=changed),
        prompts=folder.prompts if prompts is None else prompts.by_name,
        default_prompt=default_prompt,
        max_seqlen=max_seqlen,
        num_bytes=weights.stat().st_size if (weights := path / WEIGHTS).is_file() else 0,
    )


class _LayersOfModel:
    """What the names and shapes of a model's weights tell of its layers. The engine, which has the layers themselves,
    checks the rest."""

    def __init__(self, folder: ModelFolder) -> None:
        """Raises ModelError."""
        stored = tensors_in(folder.weights_folder)
        self._words = {name.split(".")[-2] for name in stored if "." in name}  # the last ones of layers' names
        # checkpoints of own code, and those that a class of the library renames, have other names than its layers
        self._has_names_of_class = not folder.is_translated and _RENAMED.isdisjoint(self._words)
        # by every end of a layer's name: classes with a head have more before it than those without
        self._shapes: dict[str, tuple[int, ...]] = {}
        for tensor in stored.values():
            parts = tensor.name.split(".")
            if parts[-1] == "weight" and tensor.dtype in PLAIN:
                self._shapes |= {".".join(parts[start:-1]): tensor.shape for start in range(len(parts) - 1)}

    def check(self, adapter: Adapter) -> None:
        """Raises ModelError for an adapter of another model."""
        for name, layer in adapter.layers.items():
            ends = (name, name.partition(".")[2])
            shape = next((self._shapes[end] for end in ends if end in self._shapes), layer.shape)
            if self._has_none(name):
                what = f"of the layer {name!r}, which the model lacks"
            elif layer.shape not in (shape, shape[::-1]):  # some classes store their weights the other way round
                what = f"of a layer of the shape {list(layer.shape)}, and the model's is {list(shape)}"
            else:
                continue
            raise ModelError(
                f"{layer.a} is {what}: it is an adapter of another model, of {adapter.base!r} by its "
                f"{CONFIG_OF_ADAPTER}{adapter.instead}"
            )

    def _has_none(self, layer: str) -> bool:
        """Whether no layer of the model can be the one of this name. Poolers are passed over where nothing reads
        their rows."""
        own = layer.split(".")
        return self._has_names_of_class and own[-1] not in self._words and _POOLER not in own


def _prompts(path: Path, folder: ModelFolder) -> Prompts | None:
    """The adapter's own; None = it has the model's. Raises ModelError where the model takes its prompts from elsewhere
    than their file, as rerankers with templates do, and these are others."""
    if "prompts" not in read_optional(path / CONFIG):
        return None
    found = read_prompts(path)
    if folder.template is None and folder.late is None:
        return found
    if found.by_name != read_prompts(folder.path).by_name:
        raise ModelError(f"prompts in {path / CONFIG} are not the model's: {merge_it(path)}")
    return None


def _said(prompts: Mapping[str, str]) -> dict[str, str]:
    """Those that say something: sentence-transformers writes empty ones where there are none."""
    return {name: prompt for name, prompt in prompts.items() if prompt}


def _default_prompt(model: ModelSettings, prompts: Prompts) -> str:
    """The flags outrank the adapter's own default, as they do the model's. Raises ModelError."""
    if model.default_prompt is not None:
        return model.default_prompt
    name = model.default_prompt_name
    if name is None:
        return prompts.default
    if name not in prompts.by_name:
        raise ModelError(f"--default-prompt-name is not one of its prompts ({', '.join(prompts.by_name) or 'none'})")
    return prompts.by_name[name]


def _modules(path: Path, folder: ModelFolder) -> SentenceFiles | None:
    """What the adapter's own modules.json says, None where there is none. Raises ModelError where it is not as the
    model's."""
    if not (path / "modules.json").is_file():
        return None
    found = read_modules(path, folder.config, pooling=None)
    differing = next(_differing(path, found, folder), None)
    if differing is not None:
        raise ModelError(f"{differing} in {path}, and the model's is another: {merge_it(path)}")
    return found


def _differing(path: Path, found: SentenceFiles, folder: ModelFolder) -> Iterator[str]:
    """What is not as the model's, by its file."""
    base = read_chain(folder.path)
    if found.chain is not base.chain and (base.chain or folder.task not in _TASKS.get(found.chain, ())):
        yield f"modules.json lists {', '.join(module.kind for module in found.modules)}"
    elif folder.task is Task.EMBED or found.chain is Chain.POOLED_SCORES:
        yield from _differing_steps(path, found, folder)
    elif base.chain:
        yield from _differing_heads(path, found.modules[1:], folder.path, base.modules[1:])
    truncate_dim, max_active_dims = read_cuts(path)
    if folder.task is Task.EMBED and truncate_dim != folder.truncate_dim:
        yield f"truncate_dim in {CONFIG} is {truncate_dim}"
    if folder.task is Task.SPARSE and max_active_dims != folder.max_active_dims:
        yield f"max_active_dims in {CONFIG} is {max_active_dims}"
    asked, source = _asked_length(path, found)
    if folder.max_seqlen_source in (*TRANSFORMER_FILES, TOKENIZER_CONFIG) and (asked or 0) > folder.max_seqlen:
        yield f"{source} allows {asked} tokens"
    if found.do_lower_case != folder.do_lower_case:
        yield f"do_lower_case in {found.max_seqlen_source} is {str(found.do_lower_case).lower()}"


def _differing_steps(path: Path, found: SentenceFiles, folder: ModelFolder) -> Iterator[str]:
    """Of the pooling and what is behind it."""
    if (found.poolings, found.include_prompt) != (folder.poolings, folder.include_prompt):
        yield f"{found.pooling_source} asks for {'+'.join(found.poolings)} pooling"
    if (found.steps, found.normalize, found.rounds) != (folder.steps, folder.normalize, folder.rounds):
        yield "modules.json has other modules after the pooling"
    files = zip(step_files(path, found.steps), step_files(folder.path, folder.steps), strict=False)
    yield from (str(own) for own, base in files if own.read_bytes() != base.read_bytes())


def _differing_heads(path: Path, own: Sequence[Module], base_path: Path, base: Sequence[Module]) -> Iterator[str]:
    """Of the modules behind the Transformer of a model that pools nothing."""
    if [module.kind for module in own] != [module.kind for module in base]:
        yield f"modules.json lists {', '.join(module.kind for module in own) or 'nothing'} behind the Transformer"
        return
    for one, other in zip(own, base, strict=True):
        files = Path(one.path, "config.json"), Path(other.path, "config.json")
        options = (read_optional(place / file) for place, file in zip((path, base_path), files, strict=True))
        asked, usual = ({**_DEFAULTS.get(one.kind, {}), **each} for each in options)
        names = (asked.keys() | usual.keys()) - _SIZES
        if changed := sorted(name for name in names if (asked.get(name) or None) != (usual.get(name) or None)):
            yield f"{', '.join(changed)} in {files[0]}"
        weights = path / one.path / _WEIGHTS, base_path / other.path / _WEIGHTS
        if one.path.parts and weights[0].is_file() and _bytes_of(weights[0]) != _bytes_of(weights[1]):
            yield str(weights[0])


def _bytes_of(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _length(path: Path, sentence: SentenceFiles | None, folder: ModelFolder) -> int:
    """The most tokens of a text, where the adapter's own files allow fewer than the model's. Raises ModelError."""
    asked, _ = _asked_length(path, sentence)
    return min(asked or folder.max_seqlen, folder.max_seqlen)


def _asked_length(path: Path, found: SentenceFiles | None) -> tuple[int | None, str]:
    """As read_length. Files of a tokenizer without its words are none, as for the merged copy."""
    where = path / found.tokenizer_folder if found else path
    if (where / _TOKENIZER).is_file():
        return read_length(where, found)
    return (found.max_seqlen, found.max_seqlen_source) if found else (None, "")


def _check_tokenizer(path: Path, folder: ModelFolder) -> None:
    """Raises ModelError where the adapter's folder has a tokenizer that makes other ids: texts are tokenized before
    anybody asks which adapter computes them."""
    own, base = path / _TOKENIZER, folder.weights_folder / _TOKENIZER
    if not own.is_file() or own.read_bytes() == base.read_bytes():
        return
    try:
        is_same = _words(own) == _words(base) and _around(path) == _around(folder.weights_folder)
    except (ValueError, KeyError, TypeError, TokenizerError):
        raise ModelError(f"{own} can't be read as a tokenizer") from None
    if not is_same:
        raise ModelError(f"{own} is another tokenizer than the model's: {merge_it(path)}")


def _words(file: Path) -> Any:
    """The ids of a tokenizer's words. The rest of the file is written in other ways by other versions."""
    content = json.loads(file.read_bytes())
    return content["model"]["vocab"], {token["content"]: token["id"] for token in content.get("added_tokens", ())}


def _around(folder: Path) -> list[int]:
    """The ids of a text with what the tokenizer puts around it, which several files may say."""
    from tokenizer_pool.tokenizer import Tokenizer  # imports the library, which few starts need

    ids: list[int] = (
        Tokenizer(TokenizerSpec(folder=str(folder), max_seqlen=_PROBE_TOKENS)).encode([_PROBE]).token_ids.tolist()
    )
    return ids
