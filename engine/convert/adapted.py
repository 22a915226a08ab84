"""Makes a model folder of an adapter's folder and its base's: the merged weights, and the files of both.

sentence-transformers saves an adapter as a model folder: modules.json, prompts, poolings and the tokenizer beside it.
These win over the base's. PEFT alone saves no more than the adapter and a card. Of the base's files its card is left
out, for it is another model's, and what depends on its rows.
"""

import contextlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.convert.conversion import Report, copy_files
from engine.convert.merging import Merge
from engine.convert.plan import copied_files
from engine.model.json_files import Json, object_in, read_object, read_optional
from engine.model.lora import CONFIG, WEIGHTS, Adapter
from engine.model.modules import Chain, model_kind, read_chain
from engine.model.sentence_files import CONFIG as SENTENCES
from engine.model.sentence_files import TRANSFORMER_FILES
from engine.model.weights import check_weights, checkpoint_files, has_weights
from engine.types import ModelError

_MODULES, _CONFIG, _INDEX = "modules.json", "config.json", "model.safetensors.index.json"
_TOKENIZER_FILE = "tokenizer.json"
_TOKENIZER = frozenset(
    (
        *(_TOKENIZER_FILE, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
        *("vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json", "tokenizer.model", "spiece.model"),
        *("sentencepiece.bpe.model",),
    )
)
_OF_SENTENCES = (_MODULES, SENTENCES)  # beside the transformer's folder, if it has one of its own
_OF_ITS_ROWS = frozenset(("README.md", "int8_ranges.npy", "int8_ranges.json"))  # of the base
# The ends of the names of transformers' classes by PEFT's task_type, for heads that an adapter brings along.
_HEADS = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
_HEAD_WEIGHTS = ("classifier.out_proj.weight", "classifier.weight", "score.weight")  # with a row for each label
_HEAD_MODULES = ("classifier", "score")
_CLASS_END = re.compile(r"(Model|LMHeadModel|For[A-Z]\w*)$")
_SCORES_VOCABULARY = ("ForCausalLM", "ForMaskedLM", "LMHeadModel")
_TABLE = re.compile(r"(word_embeddings|embed_tokens|wte|tok_embeddings|shared)\.weight$")


@dataclass(frozen=True, slots=True)
class AdaptedPlan:
    """The plan for a new folder."""

    adapter: Adapter
    merge: Merge
    weights: PurePosixPath  # the folder of the weights in the new folder
    config: Json  # config.json beside them
    copied: dict[str, Path]  # relative name, with / -> the file itself

    @property
    def num_bytes(self) -> int:
        """Bytes of the new folder, or a little more."""
        return self.merge.num_bytes + sum(path.stat().st_size for path in self.copied.values())

    @property
    def sources(self) -> dict[str, Path]:
        """All files that decide what is made, by names that tell them apart."""
        weights = {f"base {file.name}": file for file in checkpoint_files(self.merge.base)}
        own = {f"adapter {file.name}": file for file in (*self.adapter.files, self.adapter.folder / _CONFIG)}
        found = {**self.copied, **weights, **own, "base config.json": self.merge.base / _CONFIG}
        return {name: file for name, file in found.items() if file.is_file()}


def adapter_folder(folder: Path) -> Path | None:
    """Where the adapter lies in a model's folder that has no weights of its own; None = there is none."""
    places = [folder]
    with contextlib.suppress(ModelError):  # who reads the folder says what is wrong
        places.append(folder / read_chain(folder).transformer_folder)
    return next((place for place in places if (place / CONFIG).is_file() and not has_weights(place)), None)


def plan(folder: Path, adapter: Adapter, base: Path) -> AdaptedPlan:
    """Plan the new folder. adapter: that of `adapter_folder`. Raises ModelError where it does not fit the base."""
    of_base = base / read_chain(base).transformer_folder
    if any((place / CONFIG).is_file() for place in (base, of_base)):
        raise ModelError(
            f"'base_model_name_or_path' in {adapter.config_file} names {base}, which holds an adapter, too"
        )
    check_weights(of_base)
    old = read_object(of_base / _CONFIG)
    config, head_modules = _config(adapter, folder, of_base, old)
    has_modules, has_new_class = (folder / _MODULES).is_file(), config.get("architectures") != old.get("architectures")
    keeps_modules = not has_modules and not has_new_class  # a head of labels is another end than a pooling
    at = adapter.folder.relative_to(folder) if has_modules else of_base.relative_to(base) if keeps_modules else ""
    weights = PurePosixPath(at)
    chain = read_chain(folder if has_modules else base).chain if has_modules or keeps_modules else None
    _check_table(adapter, config, chain)
    merge = Merge(adapter, of_base, model_type=str(config.get("model_type")), new_modules=head_modules)
    unread = {CONFIG, WEIGHTS, _CONFIG, _INDEX, *(file.name for file in checkpoint_files(of_base))}
    ours = _placed(folder, adapter.folder, weights, unread)
    theirs = {name: path for name, path in _placed(base, of_base, weights, unread).items() if name not in _OF_ITS_ROWS}
    if not keeps_modules:
        others = (_MODULES, SENTENCES, *TRANSFORMER_FILES) if has_new_class else (_MODULES,)
        places = (weights, PurePosixPath())
        theirs = {
            name: path
            for name, path in theirs.items()
            if PurePosixPath(name).parent in places and PurePosixPath(name).name not in others
        }
    loser = theirs if str(weights / _TOKENIZER_FILE) in ours else ours
    for name in _TOKENIZER:  # parts of two tokenizers make none
        loser.pop(str(weights / name), None)
    return AdaptedPlan(adapter, merge, weights, config, theirs | ours)


def _placed(folder: Path, transformer: Path, weights: PurePosixPath, unread: Collection[str]) -> dict[str, Path]:
    """The files of a model by their names in the new one, where those of its transformer are in the folder `weights`.
    Without those of that folder that are `unread`."""
    prefix = PurePosixPath(transformer.relative_to(folder))
    found = {}
    for name, path in copied_files(folder).items():
        place = PurePosixPath(name)
        if place.parent != prefix or name in _OF_SENTENCES:
            found[name] = path
        elif place.name not in unread:
            found[str(weights / place.name)] = path
    return found


def _config(adapter: Adapter, folder: Path, of_base: Path, base: Json) -> tuple[Json, frozenset[str]]:
    """config.json of the new folder, and the modules that the adapter may bring along. base: the base's. Raises
    ModelError."""
    if own := read_optional(adapter.folder / _CONFIG):  # which only people put there
        has_head = str((own.get("architectures") or [""])[0]).endswith(tuple(_HEADS.values()))
        return own, frozenset(_HEAD_MODULES if has_head else ())
    asked = read_object(adapter.config_file)
    end = _HEADS.get(str(asked.get("task_type"))) or _end_of_class(asked, folder)
    if end is None:
        return base, frozenset()
    names = base.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    heads = [adapter.whole[each] for each in _HEAD_WEIGHTS if each in adapter.whole]
    if not heads and not name.endswith(end):
        raise ModelError(
            f"{adapter.config_file} is of an adapter for a {end} ('task_type', 'auto_mapping'), and neither "
            f"{adapter.folder / WEIGHTS} nor the base in {of_base} ({name}) has the weights of its head"
        )
    changes: Json = {"architectures": [name if name.endswith(end) else _CLASS_END.sub("", name) + end]}
    if heads and len(base.get("id2label") or {}) != heads[0].shape[0]:
        labels = {str(number): f"LABEL_{number}" for number in range(heads[0].shape[0])}
        changes |= {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
        base = {key: value for key, value in base.items() if key != "num_labels"}
    return {**base, **changes}, frozenset(_HEAD_MODULES)


def _end_of_class(asked: Json, folder: Path) -> str | None:
    """The end of the name of the class that the adapter was trained on, where that has a head of labels."""
    name = str(object_in(asked, "auto_mapping", CONFIG).get("base_model_class"))
    if model_kind(folder) == "CrossEncoder":
        return _HEADS["SEQ_CLS"]
    return next((end for end in _HEADS.values() if name.endswith(end)), None)


def _check_table(adapter: Adapter, config: Json, chain: Chain | None) -> None:
    """Raises ModelError if the adapter changes the table of tokens of a model that also scores the vocabulary by it:
    PEFT leaves that as it is."""
    tables = [layer.a for layer in adapter.tables.values()]
    tables += [tensor for name, tensor in adapter.whole.items() if _TABLE.search(name)]
    name = str((config.get("architectures") or [""])[0])
    is_tied = name.endswith(_SCORES_VOCABULARY) and config.get("tie_word_embeddings", True)
    if tables and is_tied and chain not in (Chain.EMBED, Chain.LATE):
        raise ModelError(
            f"{tables[0]} changes the table of tokens, by which a {name} also scores the vocabulary "
            "('tie_word_embeddings'), which is not computed here"
        )


def fill(folder: Path, planned: AdaptedPlan, *, report: Report) -> None:
    """Put the merged weights and the other files into an empty folder, which is unfinished until this returns. Raises
    ModelError with one line, and OSError."""
    copy_files(planned.copied, folder)
    weights = folder / planned.weights
    weights.mkdir(parents=True, exist_ok=True)
    (weights / _CONFIG).write_text(json.dumps(planned.config, indent=2, ensure_ascii=False), encoding="utf-8")
    planned.merge.write(weights, report)
