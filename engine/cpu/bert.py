"""Converts BERT and RoBERTa models, rerankers and classifiers of them too, from their weights alone, in a third of the
time that it takes with torch: numpy computes the rows that the compiled model has to give, and OpenVINO's graph is
built operation by operation.

Whatever is not exactly as here is left to engine.cpu.tracing, and so to transformers. The rows are written from the
papers (Devlin et al. 2018, arXiv 1810.04805; Vaswani et al. 2017, arXiv 1706.03762), as transformers computes them:
tests hold them against transformers.

Shapes: B sequences, S tokens of the longest, H numbers a row, M intermediate size, N heads of D numbers, L
labels.
"""

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.cpu import openvino
from engine.cpu.converted import Reference
from engine.cpu.lora import fit, numbers_of
from engine.cpu.minibatch import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS
from engine.cpu.openvino import import_openvino
from engine.cpu.outputs import head_in_graph
from engine.model import quantization
from engine.model.json_files import Json
from engine.model.lora import Adapter
from engine.model.model_folder import ModelFolder
from engine.model.tasks import SequenceScores, TokenScores
from engine.model.weights import PLAIN, StoredTensor, read_tensor, tensors_in
from engine.rows.with_numpy import gelu
from engine.selftest.comparison import not_finite
from engine.selftest.sample_ids import Sequences

# transformers' model_type -> the prefix that names have in a model with a head; RoBERTa and what is like it number
# positions from the padding id on
_PREFIXES = {"bert": "bert.", "roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}
_PARTS = ("embeddings.", "encoder.", "pooler.")  # transformers' model has no others
_OUT = "classifier."  # how names of what a head has beside the model begin
_FOLLOWS = ("embeddings.position_ids", "embeddings.token_type_ids")  # numbers that older versions wrote down
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
    """The sizes and weights that the model computes with."""

    num_layers: int
    num_heads: int
    hidden_size: int
    norm_eps: float
    padding_idx: int | None  # see ModelFolder
    head: tuple[str, ...]  # its layers: of the first token, with tanh between two; or one of each token; () = none
    weights: Weights


def read(folder: ModelFolder) -> Bert | None:
    """The model; None if it is not exactly a BERT that gives token rows or scores. Raises ModelError if a file of it is
    wrong."""
    config, stored = folder.config, described(folder)
    if stored is None:
        return None
    return Bert(
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
        norm_eps=config["layer_norm_eps"],
        padding_idx=folder.padding_idx,
        head=tuple(_head(folder)),
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
        and not (folder.is_translated or folder.adapters or folder.hides_tokens)
        and isinstance(head_in_graph(folder), SequenceScores | TokenScores | None)
        and all(type(config.get(name)) is int and config[name] > 0 for name in _SIZES)
        and config["hidden_size"] % config["num_attention_heads"] == 0
        and {"hidden_act", "layer_norm_eps"} <= config.keys()
        and all(_is_one_of(config[name], values) for name, values in _VALUES.items() if name in config)
        and all(type(config[name]) in types for name, types in _TYPES.items() if name in config)
    )


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    """Whether the value is one of these and has its type: false is no 0."""
    return any(type(value) is type(one) and value == one for one in values)


def _stored(folder: ModelFolder, config: Json) -> dict[str, StoredTensor] | None:
    """The tensors that are needed, if all are there and no other is in one of the parts but the pooler's two, whose
    rows nobody may ask for."""
    prefix, head = _PREFIXES[folder.architecture], _head(folder)
    parts = (*_PARTS, _OUT) if head else _PARTS
    found: dict[str, StoredTensor] = {}
    for tensor in tensors_in(folder.weights_folder).values():
        name = tensor.name.removeprefix(prefix)
        if not name.startswith(parts) or name in _FOLLOWS:
            continue
        is_of_another_part = name.startswith(_OUT) and name != tensor.name
        if name in found or tensor.dtype not in PLAIN or is_of_another_part:
            return None
        found[name] = tensor
    needed, size = dict(_shapes(config, head)), config["hidden_size"]
    pooler = dict(_affine("pooler.dense", (size, size)))
    has_all = needed.keys() <= found.keys()
    if not has_all or {**pooler, **{name: one.shape for name, one in found.items()}} != {**pooler, **needed}:
        return None
    return {name: found[name] for name in needed}


def _head(folder: ModelFolder) -> dict[str, int]:
    """The layers of the head in transformers' class for it, and how many numbers each gives; none without a head."""
    match head_in_graph(folder):
        case SequenceScores(labels=labels):
            is_bert = folder.architecture == "bert"
            first, last = ("pooler.dense", "classifier") if is_bert else ("classifier.dense", "classifier.out_proj")
            return {first: folder.config["hidden_size"], last: len(labels)}
        case TokenScores(labels=labels):
            return {"classifier": len(labels)}
    return {}


def _shapes(config: Json, head: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
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
    for name, size in head.items():
        yield from _affine(name, (size, hidden))


def _affine(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


_LAST = -1


class Graph:
    """Builds the graph of one model. Nodes and what they give are OpenVINO's, which has no types."""

    def __init__(self, model: Bert) -> None:
        self._model = model
        self._library = import_openvino()
        self._ops = self._library.opset13

    def build(self) -> Any:
        """The openvino.Model: int64 [B, S] ids, mask and types -> float32 [B, S, H], scores [B, S, L] or [B, L]."""
        ids, mask, types = (self._input(name) for name in (INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS))
        hidden = self._embeddings(ids, types)
        is_token = self._ops.unsqueeze(self._ops.convert(mask, "boolean"), self._axes(1, 2))
        for number in range(self._model.num_layers):
            hidden = self._layer(hidden, is_token, f"encoder.layer.{number}")
        return self._library.Model([self._ops.result(self._scores(hidden))], [ids, mask, types], "bert")

    def _input(self, name: str) -> Any:
        parameter = self._ops.parameter([-1, -1], np.int64, name=name)
        parameter.output(0).get_tensor().set_names({name})
        return parameter

    def _embeddings(self, ids: Any, types: Any) -> Any:
        """Summed in transformers' order: words, types, positions."""
        words = self._rows("embeddings.word_embeddings", ids)
        typed = self._ops.add(words, self._rows("embeddings.token_type_embeddings", types))
        positions = self._rows("embeddings.position_embeddings", self._positions(ids))
        return self._norm(self._ops.add(typed, positions), "embeddings.LayerNorm")

    def _positions(self, ids: Any) -> Any:
        """The positions of tokens, numbered as engine.rows.with_numpy numbers them."""
        ops, padding_idx = self._ops, self._model.padding_idx
        if padding_idx is None:
            length = ops.gather(ops.shape_of(ids), self._axis(1), self._axis(0))
            numbers = ops.range(self._axis(0), length, self._axis(1), "i64")
            return ops.unsqueeze(numbers, self._axes(0))
        is_token = ops.convert(ops.not_equal(ids, self._axis(padding_idx)), "i64")
        return ops.add(ops.multiply(ops.cum_sum(is_token, self._axis(1)), is_token), self._axis(padding_idx))

    def _layer(self, hidden: Any, is_token: Any, name: str) -> Any:
        attended = self._attention(hidden, is_token, f"{name}.attention.self")
        attended = self._linear(attended, f"{name}.attention.output.dense")
        hidden = self._norm(self._ops.add(attended, hidden), f"{name}.attention.output.LayerNorm")
        inner = self._ops.gelu(self._linear(hidden, f"{name}.intermediate.dense"), "erf")
        inner = self._linear(inner, f"{name}.output.dense")
        return self._norm(self._ops.add(inner, hidden), f"{name}.output.LayerNorm")

    def _scores(self, hidden: Any) -> Any:
        match self._model.head:
            case (dense, out):
                first = self._ops.gather(hidden, self._axis(0), self._axis(1))
                return self._linear(self._ops.tanh(self._linear(first, dense)), out)
            case (out,):
                return self._linear(hidden, out)
        return hidden

    def _attention(self, hidden: Any, is_token: Any, name: str) -> Any:
        ops, num_heads, size = self._ops, self._model.num_heads, self._model.hidden_size
        in_heads, swapped = self._axes(0, 0, num_heads, size // num_heads), self._axes(0, 2, 1, 3)
        query, key, value = (
            ops.transpose(ops.reshape(self._linear(hidden, f"{name}.{part}"), in_heads, True), swapped)
            for part in ("query", "key", "value")
        )
        found = ops.scaled_dot_product_attention(query, key, value, is_token)
        return ops.reshape(ops.transpose(found, swapped), self._axes(0, 0, size), True)

    def _linear(self, values: Any, name: str) -> Any:
        product = self._ops.matmul(values, self._weight(f"{name}.weight"), False, True)
        return self._ops.add(product, self._weight(f"{name}.bias"))

    def _norm(self, values: Any, name: str) -> Any:
        eps = self._model.norm_eps
        normed = self._ops.mvn(values, self._axes(_LAST), True, eps, "inside_sqrt")
        scaled = self._ops.multiply(normed, self._weight(f"{name}.weight"))
        return self._ops.add(scaled, self._weight(f"{name}.bias"))

    def _rows(self, name: str, numbers: Any) -> Any:
        return self._ops.gather(self._weight(f"{name}.weight"), numbers, self._axis(0))

    def _weight(self, name: str) -> Any:
        """Make a weight's node, which has its name, as the nodes of a traced model have."""
        return self._ops.constant(self._model.weights[name], name=name, shared_memory=True)

    def _axis(self, number: int) -> Any:
        return self._ops.constant(np.array(number, np.int64))

    def _axes(self, *numbers: int) -> Any:
        return self._ops.constant(np.array(numbers, np.int64))


_Rows = NDArray[np.float32]
# Fewer tokens take about as long: their weights have to come from memory.
_MIN_TOKENS_OF_PART = 128


def rows_of(model: Bert, sequences: Sequences) -> list[_Rows]:
    """Of each sequence of int32 [S] ids float32 [S, H], or scores [S, L] or [1, L].

    The tokens of all sequences are multiplied together, since weights take longer to read from memory than a short
    sequence to compute. A sequence attends to its own tokens alone. T: tokens of all.
    """
    weights, token_ids = model.weights, np.concatenate(sequences)
    starts = np.cumsum([0, *map(len, sequences)])[:-1]
    positions = np.concatenate([_positions(model, each) for each in sequences])
    hidden = weights["embeddings.word_embeddings.weight"][token_ids]  # [T, H]
    hidden += weights["embeddings.token_type_embeddings.weight"][0]
    hidden += weights["embeddings.position_embeddings.weight"][positions]
    hidden = _norm(model, hidden, "embeddings.LayerNorm")
    for number in range(model.num_layers):
        hidden = _layer(model, hidden, starts, f"encoder.layer.{number}")
    match model.head:
        case (dense, out):
            return list(_linear(model, np.tanh(_linear(model, hidden[starts], dense)), out)[:, None])
        case (out,):
            hidden = _linear(model, hidden, out)
    return np.split(hidden, starts[1:])


def _positions(model: Bert, token_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    if model.padding_idx is None:
        return np.arange(len(token_ids))
    is_token = token_ids != model.padding_idx
    return np.where(is_token, np.cumsum(is_token), 0) + model.padding_idx


def _layer(model: Bert, hidden: _Rows, starts: NDArray[np.int64], name: str) -> _Rows:
    attended = _attention(model, hidden, starts, f"{name}.attention.self")
    attended = _linear(model, attended, f"{name}.attention.output.dense")
    hidden = _norm(model, hidden + attended, f"{name}.attention.output.LayerNorm")
    inner = gelu(_linear(model, hidden, f"{name}.intermediate.dense"), computes_in=np.float32)
    return _norm(model, hidden + _linear(model, inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")


def _attention(model: Bert, hidden: _Rows, starts: NDArray[np.int64], name: str) -> _Rows:
    of_all = [_linear(model, hidden, f"{name}.{part}") for part in ("query", "key", "value")]
    of_each = zip(*(np.split(rows, starts[1:]) for rows in of_all), strict=True)
    return np.concatenate([_attended(model, *of_one) for of_one in of_each])


def _attended(model: Bert, *of_one: _Rows) -> _Rows:
    """Query, key and value of one sequence -> [S, H]."""
    query, key, value = (rows.reshape(len(rows), model.num_heads, -1).swapaxes(0, 1) for rows in of_one)  # [N, S, D]
    weights = query @ key.swapaxes(1, 2) / np.sqrt(np.float32(query.shape[-1]))
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    found: _Rows = (weights @ value).swapaxes(0, 1).reshape(of_one[0].shape)
    return found


def _linear(model: Bert, rows: _Rows, name: str) -> _Rows:
    found: _Rows = rows @ model.weights[f"{name}.weight"].T
    found += model.weights[f"{name}.bias"]
    return found


def _norm(model: Bert, rows: _Rows, name: str) -> _Rows:
    normed: _Rows = rows - rows.mean(axis=-1, keepdims=True)
    variance = (normed * normed).mean(axis=-1, keepdims=True)
    normed /= np.sqrt(variance + np.float32(model.norm_eps))
    normed *= model.weights[f"{name}.weight"]
    normed += model.weights[f"{name}.bias"]
    return normed


def _parts(sequences: Sequences, most: int) -> list[list[int]]:
    """The numbers of the sequences, dealt to at most so many parts of similar size."""
    seqlens = [len(sequence) for sequence in sequences]
    count = max(1, min(most, len(sequences), sum(seqlens) // _MIN_TOKENS_OF_PART))
    order = np.argsort(seqlens)[::-1].tolist()
    return [order[part :: 2 * count] + order[2 * count - 1 - part :: 2 * count] for part in range(count)]


class Built:
    """See engine.cpu.converting.Original."""

    computed_by = "those that numpy computes"

    def __init__(self, model: Bert, num_threads: int) -> None:
        self._model = model
        self._num_threads = num_threads
        self.pad_id = 0 if model.padding_idx is None else model.padding_idx

    def reference(self, sequences: Sequences, *, hides_tokens: bool) -> Reference:
        assert not hides_tokens
        rows = self._rows(sequences)
        if not all(np.isfinite(of_one).all() for of_one in rows):
            raise not_finite("transformers", "float32")  # it would give the same
        return Reference(sequences, rows)

    def _rows(self, sequences: Sequences) -> list[_Rows]:
        """Of all sequences, in parts of similar size, each computed by a thread of its own."""
        parts = _parts(sequences, self._num_threads)

        def compute(part: list[int]) -> list[_Rows]:
            with np.errstate(all="ignore"):  # weights may be infinite
                return rows_of(self._model, [sequences[number] for number in part])

        with ThreadPoolExecutor(len(parts)) as pool:
            found = [rows for of_part in pool.map(compute, parts) for rows in of_part]
        by_number = dict(zip(itertools.chain(*parts), found, strict=True))
        return [by_number[number] for number in range(len(sequences))]

    def merge(self, adapter: Adapter) -> None:
        """See engine.cpu.converting.Original."""
        weights, numbers = self._model.weights, numbers_of(adapter)
        sizes = {name.removesuffix(".weight"): each.shape for name, each in weights.items() if each.ndim == 2}
        for name, layer in fit(adapter, sizes).items():
            weights[f"{name}.weight"] = layer.merged_into(weights[f"{name}.weight"], lambda each: numbers[each.name])
            if layer.bias is not None:
                weights[f"{name}.bias"] = weights[f"{name}.bias"] + np.float32(layer.scale) * numbers[layer.bias.name]

    def write(self, target: Path, *, quantization: str) -> int:
        return openvino.save(Graph(self._model).build(), target, quantization=quantization)
