"""SPLADE models, and the query tables of those that compute only documents.

The table is sentence-transformers' SparseStaticEmbedding: each token of a query has its weight, however often it
occurs. Special tokens around a text have none.
"""

import dataclasses
from pathlib import Path
from typing import Any

from engine.model.arrays import QUERY_WEIGHTS
from engine.model.detection.chains import Chain
from engine.model.detection.detected import Detected, Files
from engine.model.detection.vocabulary import surrounding_ids
from engine.model.json_files import check_known, read_object, read_optional
from engine.model.modules import SPLADE_KEYS
from engine.model.tasks import Task, TokenTable, VocabularyWeights
from engine.model.weights import check_weights, shapes_in
from engine.types import ModelError

_SPLITS = ("added_tokens", "model", "normalizer", "pre_tokenizer")  # in tokenizer.json
_CONFIG_KEYS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")  # in tokenizer_config.json


def masked_lm(files: Files, flag: str) -> Detected:
    """A masked language model as SPLADE. The files of the first SPLADE models do not say that they are."""
    if files.chain is Chain.SPARSE:
        return dataclasses.replace(splade(files), source=flag)
    if not files.architecture.endswith("ForMaskedLM"):
        raise ModelError(f"{flag} needs a …ForMaskedLM, and config.json has {files.architecture or 'no architecture'}")
    return Detected(task=Task.SPARSE, source=flag, heads=(VocabularyWeights(),))


def splade(files: Files) -> Detected:
    source = f"{files.sentence.modules[1].path}/config.json"
    config = read_object(files.folder / source)
    check_known(config, SPLADE_KEYS, source)
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise ModelError(f"{source} asks for a pooling or an activation that SpladePooling does not have")
    head = VocabularyWeights(pooling=pooling, activation=activation)
    return Detected(task=Task.SPARSE, source=source, heads=(head,), query_table=_query_table(files))


def _query_table(files: Files) -> TokenTable | None:
    """None if queries are computed like documents. Raises ModelError if the table can't be served."""
    name = files.sentence.query_table
    if not name:
        return None
    where = files.folder / name
    config = read_optional(where / "config.json")
    check_known(config, ("frozen", "path"), f"{name}/config.json")
    if "path" in config:
        raise ModelError(f"{name}/config.json takes its weights from a JSON file (path); save it with its weights")
    if files.sentence.do_lower_case or _tokenizer(where) != _tokenizer(files.backbone_folder):
        raise ModelError(
            f"queries and documents have different tokenizers ({name}/tokenizer.json); this is not supported"
        )
    if files.needs_weights:
        check_weights(where)
        shape = shapes_in(where / "model.safetensors").get(QUERY_WEIGHTS, ())
        if len(shape) != 1 or not 0 < shape[0] <= 1 << 24:
            raise ModelError(f"{where}/model.safetensors has no {QUERY_WEIGHTS!r} with a number for each token")
    return TokenTable(folder=name, surrounding_ids=tuple(surrounding_ids(files.backbone_folder)))


def _tokenizer(folder: Path) -> list[Any]:
    """The settings that decide a text's tokens, without the special tokens around it."""
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"{folder} has no tokenizer.json; save the model with a fast tokenizer")
    tokenizer, tokenizer_config = (read_optional(folder / file) for file in ("tokenizer.json", "tokenizer_config.json"))
    return [*(tokenizer.get(key) for key in _SPLITS), *(tokenizer_config.get(key) for key in _CONFIG_KEYS)]
