"""Late-interaction models: PyLate's, sentence-transformers' MultiVectorEncoder, and Stanford's ColBERT.

Their options for queries and documents are in config_sentence_transformers.json (PyLate), in the files of the
Transformer and MultiVectorMask modules (sentence-transformers), or in artifact.metadata (Stanford).
"""

import string
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from engine.model.detection.config import WIDTHS
from engine.model.detection.detected import Detected, Files
from engine.model.detection.vocabulary import Vocabulary
from engine.model.json_files import Json, check_known, number_in, object_in, read_optional
from engine.model.modules import TOKEN_ROWS, Chain, Module, read_steps
from engine.model.sentence_files import CONFIG, read_prompts
from engine.model.tasks import Dense, LateInteraction, Normalize, Task, TokenVectors, output_size
from engine.model.weights import check_weights, checkpoint_files, shapes_in, step_files
from engine.types import ModelError

_STANFORD = "HF_ColBERT"
_STANFORD_FILE = "artifact.metadata"
_OPTIONS = "the Transformer module's file"
_STANFORD_LAYER = "linear.weight"
_CONVOLVES = frozenset(("lfm2_bidirec",))  # see Lfm2BidirecModel.forward
_QUERY_LENGTH, _DOCUMENT_LENGTH = 32, 180  # tokens, if a file of PyLate's or Stanford's does not say


def late_interaction(files: Files) -> Iterator[Detected]:
    """None or one head. Raises ModelError if it can't be served."""
    if files.chain is Chain.LATE:
        config = read_optional(files.folder / CONFIG)
        yield _of_pylate(files, config) if config.get("model_type") == "ColBERT" else _of_modules(files, config)
    elif files.chain is None and _STANFORD in (files.config.get("architectures") or ()):
        yield _of_stanford(files)


def lengths_of_roles(late: LateInteraction, asked: int, num_positions: int | None) -> tuple[LateInteraction, int]:
    """The longest sequence of queries and documents, and how each of them is cut.

    What is said of one of them outranks `asked`, the length that the files have for any text: PyLate saves there what
    its last call happened to need, without the marker, and never reads it again. It holds for the role of which nothing
    else is said. Limited by the architecture's positions alone.
    """
    longest = max(late.query_length or 0, late.expansion_length or 0, late.document_length or 0)
    if num_positions is not None:
        longest = min(longest, num_positions)
    if longest <= asked:
        return late, asked
    query_length, document_length = late.query_length or asked, late.document_length or asked
    return replace(late, query_length=query_length, document_length=document_length), longest


def _of_pylate(files: Files, config: Json) -> Detected:
    vocabulary = Vocabulary(files.backbone_folder)
    markers = {
        "query": str(config.get("query_prefix", "[Q] ") or ""),
        "document": str(config.get("document_prefix", "[D] ") or ""),
    }
    ids = {role: _marker_id(vocabulary, marker) for role, marker in markers.items()}
    prompts = read_prompts(files.folder).by_name
    for role, marker in markers.items():  # a marker that is no token becomes part of the prompt
        text = prompts.get(role, "").removeprefix(marker)
        prompts |= {role: text if ids[role] is not None else marker + text}
    expands = config.get("do_query_expansion") is not False
    words = config.get("skiplist_words")
    attends = config.get("attend_to_expansion_tokens", config.get("attend_to_mask_tokens"))
    late = LateInteraction(
        query_marker_id=ids["query"],
        document_marker_id=ids["document"],
        query_length=number_in(config, "query_length", file=CONFIG) or _QUERY_LENGTH,
        expansion_id=_expansion_id(vocabulary, None) if expands else None,
        attends_to_expansion=expands and bool(attends),
        document_length=number_in(config, "document_length", file=CONFIG) or _DOCUMENT_LENGTH,
        skipped_ids=_ids(vocabulary, string.punctuation if words is None else words),
    )
    prompts = {name: prompt for name, prompt in prompts.items() if prompt or name not in markers}
    return _detected(files, late, prompts=prompts, normalizes=True)


def _of_modules(files: Files, config: Json) -> Detected:
    vocabulary = Vocabulary(files.backbone_folder)
    prompts = read_prompts(files.folder).by_name
    ids = {role: _marker_id(vocabulary, prompts.get(role, "")) for role in ("query", "document")}
    options = {**config, **files.sentence.transformer}
    expansion = object_in(options, "query_expansion")
    length, asked = (
        number_in(given, name, file=_OPTIONS) for given, name in ((expansion, "length"), (options, "query_length"))
    )
    _check_expansion(expansion, length, asked)
    is_least = expansion.get("strategy") == "min"  # longer queries stay as they are, up to query_length
    mask = next((module for module in files.sentence.modules if module.kind == "MultiVectorMask"), None)
    skipping = _skipping(files, mask) if mask else {}
    if skipping.get("keep_only_token_ids") or skipping.get("skiplist_tasks", ["document"]) != ["document"]:
        raise ModelError("the MultiVectorMask module leaves out more than words of documents; this is not supported")
    late = LateInteraction(
        query_marker_id=ids["query"],
        document_marker_id=ids["document"],
        marks_text_start=ids["query"] is not None or ids["document"] is not None,
        query_length=asked if is_least else length or asked,
        expansion_id=_expansion_id(vocabulary, expansion.get("token")) if expansion else None,
        expansion_length=length if is_least else None,
        attends_to_expansion=bool(expansion.get("attend")),
        document_length=number_in(options, "document_length", file=_OPTIONS),
        skipped_ids=_ids(vocabulary, skipping.get("skiplist_words") or ()),
    )
    prompts = {name: prompt for name, prompt in prompts.items() if ids.get(name) is None}
    return _detected(files, late, prompts=prompts, normalizes=False)


def _check_expansion(expansion: Json, length: int | None, query_length: int | None) -> None:
    """Raises ModelError for what the library refuses."""
    check_known(expansion, ("strategy", "length", "attend", "token"), f"query_expansion in {_OPTIONS}")
    if expansion and (expansion.get("strategy") not in ("fixed", "min") or length is None):
        raise ModelError("query_expansion in the Transformer module has no length, or a strategy but fixed and min")
    if expansion and query_length and query_length < (length or 0):
        raise ModelError("query_length in the Transformer module is less than the length in its query_expansion")


def _skipping(files: Files, mask: Module) -> Json:
    config = read_optional(files.folder / mask.path / "config.json")
    check_known(config, ("skiplist_words", "skiplist_tasks", "keep_only_token_ids"), f"{mask.path}/config.json")
    return config


def _of_stanford(files: Files) -> Detected:
    vocabulary, artifact = Vocabulary(files.backbone_folder), read_optional(files.folder / _STANFORD_FILE)
    late = LateInteraction(
        query_marker_id=vocabulary.needed(str(artifact.get("query_token_id") or "[unused0]")),
        document_marker_id=vocabulary.needed(str(artifact.get("doc_token_id") or "[unused1]")),
        query_length=number_in(artifact, "query_maxlen", file=_STANFORD_FILE) or _QUERY_LENGTH,
        expansion_id=_expansion_id(vocabulary, None),
        attends_to_expansion=bool(artifact.get("attend_to_mask_tokens")),
        document_length=number_in(artifact, "doc_maxlen", file=_STANFORD_FILE),
        skipped_ids=_ids(vocabulary, string.punctuation if artifact.get("mask_punctuation", True) else ()),
    )
    step = _stanford_step(files, artifact)
    return Detected(
        task=Task.LATE_INTERACTION,
        source=f"config.json: {_STANFORD}",
        heads=(TokenVectors(steps=(step,), dimensions=step.out_features),),
        late=late,
    )


def _stanford_step(files: Files, artifact: Json) -> Dense:
    """The projection layer, which is stored with the model's weights."""
    hidden_size = number_in(files.config, *WIDTHS) or 0
    file = "model.safetensors"
    shape: tuple[int, ...] = (number_in(artifact, "dim", file=_STANFORD_FILE) or 0, hidden_size)
    if files.needs_weights:
        found = {each.name: shapes_in(each).get(_STANFORD_LAYER) for each in checkpoint_files(files.backbone_folder)}
        file, shape = next(((name, each) for name, each in found.items() if each), ("", ()))
    if len(shape) != 2 or shape[1] != hidden_size or not shape[0]:
        raise ModelError(f"the weights have no {_STANFORD_LAYER!r} for rows of {hidden_size} numbers")
    return Dense(folder=file, in_features=hidden_size, out_features=shape[0], has_bias=False, activation="Identity")


def _detected(files: Files, late: LateInteraction, *, prompts: dict[str, str], normalizes: bool) -> Detected:
    steps = read_steps(files.folder, files.sentence.modules[1:], row=TOKEN_ROWS)
    is_last = bool(steps) and isinstance(steps[-1], Normalize)
    steps = steps[:-1] if is_last else steps
    for file in step_files(files.folder, steps) if files.needs_weights else ():
        check_weights(file.parent)
    if files.config.get("model_type") in _CONVOLVES and late.expansion_id == files.config.get("pad_token_id", 0):
        raise ModelError("the model fills queries up with the padding token, which its convolutions would not see here")
    hidden_size = number_in(files.config, *WIDTHS) or 0
    head = TokenVectors(steps=steps, dimensions=output_size(steps, hidden_size), normalize=normalizes or is_last)
    return Detected(
        task=Task.LATE_INTERACTION, source=f"modules.json and {CONFIG}", heads=(head,), late=late, prompts=prompts
    )


def _marker_id(vocabulary: Vocabulary, marker: str) -> int | None:
    """The id of "[Q] ", PyLate's token, or of the marker without the space."""
    for text in (marker, marker.strip()):
        if text and (found := vocabulary.id_of(text)) is not None:
            return found
    return None


def _expansion_id(vocabulary: Vocabulary, token: Any) -> int:
    if token is not None:
        return vocabulary.needed(str(token))
    found = vocabulary.special("mask_token")
    found = vocabulary.special("eos_token") if found is None else found
    if found is None:
        raise ModelError("queries are filled up with the mask token, but tokenizer.json has none")
    return found


def _ids(vocabulary: Vocabulary, words: Any) -> tuple[int, ...]:
    """The ids of those words that are single tokens."""
    if not isinstance(words, str | list | tuple):
        raise ModelError("skiplist_words in the model's files is not a list")
    found = {vocabulary.id_of(str(word)) for word in words}
    return tuple(sorted(each for each in found if each is not None))
