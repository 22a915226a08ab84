"""A BERT's configuration and weights, if nothing about them is unusual.

Shapes: H hidden size, M intermediate size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.cpu.outputs import head_in_graph
from engine.model import quantization
from engine.model.arrays import read_tensor
from engine.model.json_files import Json
from engine.model.model_folder import ModelFolder
from engine.model.weights import StoredTensor, tensors_in

# transformers' model_type -> the prefix that names have in a model with a head; RoBERTa and what is like it number
# positions from the padding id on
_PREFIXES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}
_PARTS = ("embeddings.", "encoder.", "pooler.")  # transformers' model has no others
_FOLLOWS = ("embeddings.position_ids", "embeddings.token_type_ids")  # numbers that older versions wrote down
_DTYPES = frozenset(("F64", "F32", "F16", "BF16"))
_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_NONE = type(None)
# A key that is there has one of these values, or a value of one of these types. Others transformers refuses, or may
# compute something else with them.
_VALUES: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "hidden_act": ("gelu",),
    "is_decoder": (False,),
    "position_embedding_type": ("absolute", None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "text_config": (None,),
    **dict.fromkeys(("dtype", "torch_dtype"), ("bfloat16", "float16", "float32", None)),
}
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("attention_probs_dropout_prob", "hidden_dropout_prob"), (float, int)),
    **dict.fromkeys(("bos_token_id", "pad_token_id"), (int, _NONE)),
    **dict.fromkeys(("initializer_range", "layer_norm_eps"), (float,)),
    **dict.fromkeys(("tie_word_embeddings", "use_cache"), (bool,)),
    "classifier_dropout": (float, int, _NONE),
    "eos_token_id": (int, _NONE),
    "id2label": (dict, _NONE),
    "num_labels": (int,),
}

Weights = dict[str, NDArray[np.float32]]  # transformers' names without the prefix; of a Linear [outputs, inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bert:
    """What the model computes with."""

    num_layers: int
    num_heads: int
    hidden_size: int
    norm_eps: float
    padding_idx: int | None  # see ModelFolder
    weights: Weights


def read(folder: ModelFolder) -> Bert | None:
    """None if the model is not exactly a BERT that gives token rows. Raises ModelError if a file of it is wrong."""
    config, stored = folder.config, described(folder)
    if stored is None:
        return None
    return Bert(
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
        norm_eps=config["layer_norm_eps"],
        padding_idx=folder.padding_idx,
        weights={name: read_tensor(tensor) for name, tensor in stored.items()},
    )


def described(folder: ModelFolder) -> dict[str, StoredTensor] | None:
    """The weights that `read` reads, by name. Reads the headers of files alone, and raises as `read` does."""
    quantization.check(folder.weights_folder, reads_fp8=False)
    return _stored(folder, folder.config) if _is_plain(folder, folder.config) else None


def _is_plain(folder: ModelFolder, config: Json) -> bool:
    return (
        folder.architecture == config.get("model_type")
        and folder.architecture in _PREFIXES
        and (folder.padding_idx is None) == (folder.architecture == "bert")
        and not (folder.is_translated or folder.adapters or folder.hides_tokens or head_in_graph(folder))
        and all(type(config.get(name)) is int and config[name] > 0 for name in _SIZES)
        and config["hidden_size"] % config["num_attention_heads"] == 0
        and {"hidden_act", "layer_norm_eps"} <= config.keys()
        and all(_is_one_of(config[name], values) for name, values in _VALUES.items() if name in config)
        and all(type(config[name]) in types for name, types in _TYPES.items() if name in config)
    )


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    """Of the same type, too: false is no 0."""
    return any(type(value) is type(one) and value == one for one in values)


def _stored(folder: ModelFolder, config: Json) -> dict[str, StoredTensor] | None:
    """The tensors that are needed, if all are there and no other is in one of the parts but the pooler's two, whose
    rows nobody asks for."""
    prefix = _PREFIXES[folder.architecture]
    found: dict[str, StoredTensor] = {}
    for tensor in tensors_in(folder.weights_folder).values():
        name = tensor.name.removeprefix(prefix)
        if not name.startswith(_PARTS) or name in _FOLLOWS:
            continue
        if name in found or tensor.dtype not in _DTYPES:
            return None
        found[name] = tensor
    needed, size = dict(_shapes(config)), config["hidden_size"]
    pooler = dict(_affine("pooler.dense", (size, size)))
    if {**pooler, **{name: tensor.shape for name, tensor in found.items()}} != {**pooler, **needed}:
        return None
    return {name: found[name] for name in needed}


def _shapes(config: Json) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (config["vocab_size"], hidden)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], hidden)
    yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], hidden)
    yield from _affine("embeddings.LayerNorm", (hidden,))
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            yield from _affine(f"{layer}.attention.self.{name}", (hidden, hidden))
        yield from _affine(f"{layer}.attention.output.dense", (hidden, hidden))
        yield from _affine(f"{layer}.attention.output.LayerNorm", (hidden,))
        yield from _affine(f"{layer}.intermediate.dense", (inner, hidden))
        yield from _affine(f"{layer}.output.dense", (hidden, inner))
        yield from _affine(f"{layer}.output.LayerNorm", (hidden,))


def _affine(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
