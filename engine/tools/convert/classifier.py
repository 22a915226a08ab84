"""A generative reranker's folder into one of a classifier with one label, whose raw score is yes less no.

Plans and copies, and writes config.json; the head is made by answer_row.py. Only safetensors are read.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model import model_folder
from engine.model.detection.chains import Chain
from engine.model.detection.generative import TEMPLATE_KEY, template_name
from engine.model.detection.vocabulary import Vocabulary
from engine.model.json_files import Json, read_object
from engine.model.model_folder import ModelFolder
from engine.model.sentence_files import CONFIG, read_modules
from engine.model.tasks import AnswerScore, Task
from engine.model.weights import header_of, weight_files
from engine.tools.convert.conversion import new_folder
from engine.tools.convert.plan import copied_files
from engine.types import ModelError

HEAD = "score.weight"  # as transformers' classes for decoders call it
_GENERATIVE, _SCORING = "ForCausalLM", "ForSequenceClassification"
_VOCABULARY = ("lm_head.weight", "model.embed_tokens.weight")  # the latter where the two are tied
_SENTENCE_FILES = frozenset(("modules.json", CONFIG, "sentence_bert_config.json"))
_INDEX = "model.safetensors.index.json"
_LABELS = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "num_labels": 1}
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_INDENT = 2


@dataclass(frozen=True, slots=True)
class Classifier:
    """What was made."""

    folder: Path  # the new one
    template: str  # whose it is that pairs are put into
    entries: tuple[int, ...]  # of the vocabulary: yes, or yes and no


@dataclass(frozen=True, slots=True)
class _Weights:
    """Where the rows of the answer are."""

    files: tuple[Path, ...]
    file: Path  # one of them
    name: str  # of the tensor
    is_left_out: bool  # no part of a classifier


def convert(folder: Path, out: Path) -> Classifier:
    """Make `out` of `folder`. Whatever goes wrong or ends this process, `out` is whole or is not there.

    Raises ModelError with one line where the model is no generative reranker, or its weights are not safetensors.
    """
    out = new_folder(out)
    if not weight_files(folder)[0].is_file():
        raise ModelError("--as-classifier reads safetensors alone: convert the model without it first, then the result")
    found = model_folder.read(folder, task=Task.RERANK)
    head = found.heads[0] if found.heads else None
    if not isinstance(head, AnswerScore):
        raise ModelError(f"--as-classifier is for generative rerankers, and this model is none ({found.task_source})")
    entries = (head.yes_id,) if head.no_id is None else (head.yes_id, head.no_id)
    weights = _weights(folder)
    config = _config(found)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.new-", dir=out.parent) as scratch:
            unfinished = Path(scratch, "model")  # made with this user's usual rights, unlike the folder around it
            unfinished.mkdir()
            _copy(folder, unfinished, weights)
            _write_weights(weights, entries, unfinished)
            _write(unfinished / "config.json", config)
            unfinished.rename(out)
    except OSError as error:
        raise ModelError(f"{out} can't be written: {error.strerror or error}") from error
    return Classifier(out, template_name(found.template) or "its own", entries)


def _weights(folder: Path) -> _Weights:
    files = tuple(weight_files(folder))
    try:
        names = {name: file for file in files for name in header_of(file).tensors}
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{folder} has a file of weights that is not safetensors") from error
    name = next((name for name in _VOCABULARY if name in names), None)
    if name is None or "lm_head.bias" in names:
        raise ModelError(f"--as-classifier needs the rows of the vocabulary as {' or '.join(_VOCABULARY)}, and no bias")
    return _Weights(files, names[name], name, is_left_out=name == _VOCABULARY[0])


def _config(found: ModelFolder) -> Json:
    """config.json of a classifier that asks as the reranker does."""
    config = read_object(found.path / "config.json")
    name = str((config.get("architectures") or [""])[0])
    if not name.endswith(_GENERATIVE) or found.template is None:
        raise ModelError(f"--as-classifier is for a …{_GENERATIVE} with a known template, not for {name or 'this'}")
    if config.get("pad_token_id") is None:  # transformers looks for the last token that is none
        config["pad_token_id"] = Vocabulary(found.path).special("pad_token")
    told: dict[str, Any] = {
        "architectures": [name.removesuffix(_GENERATIVE) + _SCORING],
        **_LABELS,
        "sentence_transformers": {"activation_fn": _SIGMOID},
        TEMPLATE_KEY: {"parts": list(found.template.parts), "instruction": found.template.instruction},
    }
    return {**config, **told}


def _copy(folder: Path, target: Path, weights: _Weights) -> None:
    """All but what is written anew, and what tells sentence-transformers that the model generates."""
    written = {"config.json", _INDEX, weights.file.name}
    heads: set[str] = set()
    sentence = read_modules(folder, {}, pooling=None)
    if sentence.chain is Chain.ANSWER:
        written |= _SENTENCE_FILES
        heads = {module.path.parts[0] for module in sentence.modules if module.path.parts}
    for name, path in copied_files(folder).items():
        if name not in written and name.split("/")[0] not in heads:
            new = target / name
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, new)


def _write_weights(weights: _Weights, entries: tuple[int, ...], target: Path) -> None:
    """The file with the rows of the answer, and the index where there are several files."""
    from engine.tools.convert import answer_row  # imports torch

    new = target / weights.file.name
    answer_row.write(weights.file, new, weights.name, entries, leaves_out=weights.is_left_out, head=HEAD)
    if len(weights.files) == 1 and weights.file.name == "model.safetensors":
        return
    headers = {file.name: header_of(target / file.name) for file in weights.files}
    size = sum((target / name).stat().st_size - header.end for name, header in headers.items())
    weight_map = {tensor: name for name, header in headers.items() for tensor in header.tensors}
    _write(target / _INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})


def _write(file: Path, value: Json) -> None:
    file.write_text(json.dumps(value, indent=_INDENT, ensure_ascii=False), encoding="utf-8")
