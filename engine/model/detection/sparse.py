"""Sparse models: SPLADE, those whose queries are looked up in a table, and bge-m3 with its heads beside the model.

The table is sentence-transformers' SparseStaticEmbedding: each token of a query has its weight, however often it
occurs. Special tokens around a text have none. bge-m3's sparse weights and token vectors come from the same rows as its
embeddings.
"""

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.model.detection.detected import Detected, Files
from engine.model.detection.vocabulary import Vocabulary, surrounding_ids
from engine.model.json_files import check_known, number_in, read_object, read_optional
from engine.model.modules import SPLADE_KEYS, Chain
from engine.model.tasks import (
    TOKEN_WEIGHTS_FILE,
    Dense,
    LateInteraction,
    Task,
    TokenTable,
    TokenVectors,
    TokenWeights,
    VocabularyWeights,
)
from engine.model.weights import QUERY_WEIGHTS, check_weights, shapes_in
from engine.types import ModelError

_SPLITS = ("added_tokens", "model", "normalizer", "pre_tokenizer")  # in tokenizer.json
_CONFIG_KEYS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")  # in tokenizer_config.json
_VECTORS_FILE = "colbert_linear.safetensors"
PICKLED_FILES = ("sparse_linear.pt", "colbert_linear.pt")
_ARCHITECTURE = "xlm-roberta"
_UNUSED = ("cls_token", "eos_token", "pad_token", "unk_token")  # special tokens, which never have a weight


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


def side_heads(files: Files) -> Iterator[Detected]:
    """The heads besides, or none. Raises ModelError for a wrong file."""
    folder = files.folder
    if files.config.get("model_type") != _ARCHITECTURE:
        return
    there = [name for name in (TOKEN_WEIGHTS_FILE, _VECTORS_FILE) if (folder / name).is_file()]
    if not there:
        if any((folder / name).is_file() for name in PICKLED_FILES):
            yield Detected(task=Task.EMBED, source="no head that can be read", notes=(_not_read(folder),))
        return
    hidden_size = number_in(files.config, "hidden_size") or 0
    sparse = (_token_weights(files, hidden_size),) if TOKEN_WEIGHTS_FILE in there else ()
    vectors = (_token_vectors(folder, hidden_size),) if _VECTORS_FILE in there else ()
    yield Detected(
        task=Task.EMBED,
        source=f"{' and '.join(there)} beside the model",
        heads=(*sparse, *vectors),
        late=LateInteraction(skips_first=True) if vectors else None,
    )


def _not_read(folder: Path) -> str:
    found = " and ".join(name for name in PICKLED_FILES if (folder / name).is_file())
    return (
        f"{found} can run code and so is not read: dense rows alone; "
        f"embedline convert {shlex.quote(str(folder))} OUT makes files of them that are"
    )


def _token_weights(files: Files, hidden_size: int) -> TokenWeights:
    file = files.folder / TOKEN_WEIGHTS_FILE
    shapes = shapes_in(file)
    _check_layer(file, shapes, out_features=1, in_features=hidden_size)
    vocabulary = Vocabulary(files.backbone_folder)
    unused = {vocabulary.special(name) for name in _UNUSED}
    return TokenWeights(unused_ids=tuple(sorted(each for each in unused if each is not None)))


def _token_vectors(folder: Path, hidden_size: int) -> TokenVectors:
    shapes = shapes_in(folder / _VECTORS_FILE)
    out_features = (shapes.get("weight") or (0,))[0]
    _check_layer(folder / _VECTORS_FILE, shapes, out_features=out_features, in_features=hidden_size)
    step = Dense(
        folder=_VECTORS_FILE,
        in_features=hidden_size,
        out_features=out_features,
        has_bias="bias" in shapes,
        activation="Identity",
    )
    return TokenVectors(steps=(step,), dimensions=out_features)


def _check_layer(file: Path, shapes: dict[str, tuple[int, ...]], *, out_features: int, in_features: int) -> None:
    wanted = (out_features, in_features)
    if not out_features or shapes.get("weight") != wanted or shapes.get("bias", wanted[:1]) != wanted[:1]:
        raise ModelError(f"{file} does not hold the weight and bias of a layer for rows of {in_features} numbers")
