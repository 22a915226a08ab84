"""Makes a classifier's folder from a generative reranker's. Its one label has the raw score yes less no.

Reads only safetensors. Imports torch when the head is made.

Shapes: V entries of the vocabulary, D numbers a row.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.convert.conversion import copy_files
from engine.convert.plan import copied_files
from engine.model import model_folder
from engine.model.detection.scores import TEMPLATE_KEY
from engine.model.detection.templates import template_name
from engine.model.detection.vocabulary import Vocabulary
from engine.model.json_files import Json, read_object
from engine.model.model_folder import ModelFolder
from engine.model.modules import Chain
from engine.model.sentence_files import CONFIG, read_modules
from engine.model.tasks import AnswerScore, Task
from engine.model.weights import checkpoint_files, header_of
from engine.store.output_folder import new_folder, unfinished
from engine.types import ModelError

HEAD = "score.weight"  # as transformers' classes for decoders call it
_GENERATIVE, _SCORING = "ForCausalLM", "ForSequenceClassification"
_VOCABULARY = ("lm_head.weight", "model.embed_tokens.weight")  # the latter where the two are tied
_SENTENCE_FILES = frozenset(("modules.json", CONFIG, "sentence_bert_config.json"))
_INDEX = "model.safetensors.index.json"
_LABELS = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "num_labels": 1}
_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_INDENT = 2
_READ_WRITE = 0o666


@dataclass(frozen=True, slots=True)
class Classifier:
    """The new folder."""

    folder: Path  # the new one
    template: str  # the name of the model whose template pairs are put into
    entries: tuple[int, ...]  # of the vocabulary: yes, or yes and no


@dataclass(frozen=True, slots=True)
class _Weights:
    """The places of the answer's rows."""

    files: tuple[Path, ...]
    file: Path  # one of them
    name: str  # of the tensor
    is_left_out: bool  # a classifier has no such tensor


def convert(folder: Path, out: Path, *, template: str | None = None) -> Classifier:
    """Make `out` from `folder`. Whatever goes wrong or ends this process, `out` is whole or is not there.

    template: see model_folder.read.

    Raises ModelError with one line where the model is no generative reranker, or its weights are not safetensors.
    """
    out = new_folder(out)
    if not checkpoint_files(folder)[0].is_file():
        raise ModelError(
            "--as-classifier reads only safetensors: convert the model without this flag first, then convert the result"
        )
    found = model_folder.read(folder, task=Task.RERANK, template=template)
    head = found.heads[0] if found.heads else None
    if not isinstance(head, AnswerScore):
        raise ModelError(f"--as-classifier is for generative rerankers; this model is not one ({found.task_source})")
    entries = (head.yes_id,) if head.no_id is None else (head.yes_id, head.no_id)
    weights = _weights(folder)
    config = _config(found)
    with unfinished(out) as new:
        _copy(folder, new, weights)
        _write_weights(weights, entries, new)
        _write(new / "config.json", config)
    return Classifier(out, template_name(found.template) or "its own", entries)


def _weights(folder: Path) -> _Weights:
    files = tuple(checkpoint_files(folder))
    try:
        names = {name: file for file in files for name in header_of(file).tensors}
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{folder} has a file of weights that is not safetensors") from error
    name = next((name for name in _VOCABULARY if name in names), None)
    if name is None or "lm_head.bias" in names:
        raise ModelError(f"--as-classifier needs the rows of the vocabulary as {' or '.join(_VOCABULARY)}, and no bias")
    return _Weights(files, names[name], name, is_left_out=name == _VOCABULARY[0])


def _config(found: ModelFolder) -> Json:
    """config.json of the classifier: the reranker's, with its template."""
    config = read_object(found.path / "config.json")
    name = str((config.get("architectures") or [""])[0])
    if not name.endswith(_GENERATIVE) or found.template is None:
        raise ModelError(f"--as-classifier is for a …{_GENERATIVE} with a known template, not for {name or 'this'}")
    if found.template.chat:
        raise ModelError("--as-classifier can't keep a chat template; name one that it can by --template")
    if config.get("pad_token_id") is None:  # transformers looks for the last token that is none
        config["pad_token_id"] = Vocabulary(found.path).special("pad_token")
    changes: dict[str, Any] = {
        "architectures": [name.removesuffix(_GENERATIVE) + _SCORING],
        **_LABELS,
        "sentence_transformers": {"activation_fn": _SIGMOID},
        TEMPLATE_KEY: {"parts": list(found.template.parts), "instruction": found.template.instruction},
    }
    return {**config, **changes}


def _copy(folder: Path, target: Path, weights: _Weights) -> None:
    """Copy all files except those that are written anew, and those that describe a generative model."""
    written = {"config.json", _INDEX, weights.file.name}
    heads: set[str] = set()
    sentence = read_modules(folder, {}, pooling=None)
    if sentence.chain is Chain.ANSWER:
        written |= _SENTENCE_FILES
        heads = {module.path.parts[0] for module in sentence.modules if module.path.parts}
    files = copied_files(folder).items()
    copy_files({name: path for name, path in files if name not in written and name.split("/")[0] not in heads}, target)


def _write_weights(weights: _Weights, entries: tuple[int, ...], target: Path) -> None:
    """The file with the rows of the answer, and the index where there are several files."""
    _write_head(weights, entries, target / weights.file.name)
    if len(weights.files) == 1 and weights.file.name == "model.safetensors":
        return
    headers = {file.name: header_of(target / file.name) for file in weights.files}
    size = sum((target / name).stat().st_size - header.end for name, header in headers.items())
    weight_map = {tensor: name for name, header in headers.items() for tensor in header.tensors}
    _write(target / _INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})


def _write_head(weights: _Weights, entries: tuple[int, ...], new: Path) -> None:
    """The file of the vocabulary [V, D] with the head [1, D] in float32: yes less no, or yes alone.

    float32 whatever the model's dtype is, because the difference of two rows has more digits than either; an engine
    that computes in fewer digits rounds it then. Raises ModelError.
    """
    import torch
    from safetensors.torch import load_file, save_file

    try:
        tensors = load_file(weights.file)
    except Exception as error:  # the library raises what it likes
        raise ModelError(f"{weights.file.name} is not a safetensors file") from error
    rows_VD = tensors[weights.name]
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    if rows_VD.ndim != 2 or rows_VD.dtype not in dtypes or max(entries) >= len(rows_VD):
        tokens = ", ".join(map(str, entries))
        raise ModelError(f"{weights.name!r} in {weights.file.name} has no plain rows for the tokens {tokens}")
    yes, *no = (rows_VD[entry].float() for entry in entries)
    tensors[HEAD] = torch.stack([yes - no[0] if no else yes])
    if weights.is_left_out:
        del tensors[weights.name]
    save_file(tensors, new, metadata={"format": "pt"})
    new.chmod(new.parent.stat().st_mode & _READ_WRITE)  # the library lets only this user read it


def _write(file: Path, value: Json) -> None:
    file.write_text(json.dumps(value, indent=_INDENT, ensure_ascii=False), encoding="utf-8")
