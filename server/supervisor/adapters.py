"""The LoRA adapters of --lora, checked before any process is started.

An adapter's folder is what PEFT saved, or sentence-transformers beside it: with the prompts, the modules and the
tokenizer of the whole model. Its prompts and its length are its own. The rest must be the model's, which computes it:
what differs is refused by the name of its file, because rows would be others than the library's in silence.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.identity import Identity, with_adapter
from engine.model.json_files import read_optional
from engine.model.lora import CONFIG as CONFIG_OF_ADAPTER
from engine.model.lora import WEIGHTS, check_apart, read_adapter
from engine.model.model_folder import ModelFolder
from engine.model.sentence_files import (
    CONFIG,
    TRANSFORMER_FILES,
    Prompts,
    SentenceFiles,
    read_cuts,
    read_modules,
    read_prompts,
)
from engine.model.tasks import Task
from engine.model.weights import PLAIN, checkpoint_files, step_files, stored_tensors
from engine.types import ModelError
from server.requests.prompts import NEWEST, PURPOSES
from server.settings.flag import SettingsError
from server.settings.model import ModelSettings
from tokenizer_pool.messages import TokenizerSpec
from wire.control import Json
from wire.tokenizer_files import TokenizerError

_MERGE = "serve the adapter's folder as a model of its own, which merges it"
_TOKENIZER = "tokenizer.json"
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
    model: ModelSettings, folder: ModelFolder, base: Identity, *, default_prompt: str, has_weights: bool
) -> tuple[Lora, ...]:
    """The model's adapters in the order of their numbers. `folder`, `base` and `default_prompt` are the model's.
    `has_weights` is False for an engine that reads none. Raises SettingsError and ModelError."""
    check_names(model, folder)
    shapes = _shapes(folder) if model.loras and has_weights else None
    found = []
    for name, given in model.loras:
        try:
            lora = _lora(name, given, model, folder, base, default_prompt)
            if shapes is not None:
                _check_layers(lora.path, shapes)
            found.append(lora)
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
    sentence = _modules(path, folder)
    prompts = _prompts(path, folder)
    changed: dict[str, object] = {}
    if prompts is not None:
        own_default, own = _default_prompt(model, prompts), _said(prompts.by_name)
        if (own, own_default) != (_said(folder.prompts), default_prompt):
            changed = {"prompts": own, "default_prompt": own_default}
        default_prompt = own_default
    max_seqlen = min(sentence.max_seqlen or folder.max_seqlen, folder.max_seqlen) if sentence else folder.max_seqlen
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


def _shapes(folder: ModelFolder) -> dict[str, tuple[int, ...]]:
    """The shape of each weight by every end of its name: classes with a head have more before it than those without."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in checkpoint_files(folder.weights_folder):
        for tensor in stored_tensors(file):
            parts = tensor.name.split(".")
            if parts[-1] == "weight" and tensor.dtype in PLAIN:
                shapes |= {".".join(parts[start:-1]): tensor.shape for start in range(len(parts) - 1)}
    return shapes


def _check_layers(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelError for an adapter that can't be read or kept apart, or is of another model, as far as names and
    shapes of the weights tell: the engine, which has the layers themselves, checks the rest."""
    adapter = read_adapter(path)
    check_apart(adapter)
    for name, layer in adapter.layers.items():
        ends = (name, name.partition(".")[2])
        shape = next((shapes[end] for end in ends if end in shapes), layer.shape)
        if layer.shape not in (shape, shape[::-1]):  # some classes store their weights the other way round
            raise ModelError(
                f"{layer.a} is of a layer of the shape {list(layer.shape)}, and the model's is {list(shape)}: it is an "
                f"adapter of another model, of {adapter.base!r} by its {CONFIG_OF_ADAPTER}"
            )


def _prompts(path: Path, folder: ModelFolder) -> Prompts | None:
    """The adapter's own; None = it has the model's. Raises ModelError where the model takes its prompts from elsewhere
    than their file, as rerankers with templates do, and these are others."""
    if "prompts" not in read_optional(path / CONFIG):
        return None
    found = read_prompts(path)
    if folder.template is None and folder.late is None:
        return found
    if found.by_name != read_prompts(folder.path).by_name:
        raise ModelError(f"prompts in {path / CONFIG} are not the model's: {_MERGE}")
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
        raise ModelError(f"{differing} in {path}, and the model's is another: {_MERGE}")
    return found


def _differing(path: Path, found: SentenceFiles, folder: ModelFolder) -> Iterator[str]:
    """What is not as the model's, by its file."""
    if folder.task is Task.EMBED:
        if (found.poolings, found.include_prompt) != (folder.poolings, folder.include_prompt):
            yield f"{found.pooling_source} asks for {'+'.join(found.poolings)} pooling"
        if (found.steps, found.normalize, found.rounds) != (folder.steps, folder.normalize, folder.rounds):
            yield "modules.json has other modules after the pooling"
        files = zip(step_files(path, found.steps), step_files(folder.path, folder.steps), strict=False)
        yield from (str(own) for own, base in files if own.read_bytes() != base.read_bytes())
        truncate_dim, _ = read_cuts(path)
        if truncate_dim != folder.truncate_dim:
            yield f"truncate_dim in {CONFIG} is {truncate_dim}"
    if folder.max_seqlen_source in TRANSFORMER_FILES and (found.max_seqlen or 0) > folder.max_seqlen:
        yield f"{found.max_seqlen_source} allows {found.max_seqlen} tokens"
    if found.do_lower_case != folder.do_lower_case:
        yield f"do_lower_case in {found.max_seqlen_source} is {str(found.do_lower_case).lower()}"


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
        raise ModelError(f"{own} is another tokenizer than the model's: {_MERGE}")


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
