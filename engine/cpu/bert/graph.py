"""A BERT as a graph of OpenVINO's operations: padded ids in, token rows out.

Shapes: B sequences, S tokens of the longest, H numbers a row, N heads.
"""

from typing import Any

import numpy as np

from engine.cpu.bert.weights import Bert
from engine.cpu.executors.openvino import import_openvino
from engine.cpu.minibatch import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS

_LAST = -1


class Graph:
    """Builds the graph of one model. Nodes and what they give are OpenVINO's, which has no types."""

    def __init__(self, model: Bert) -> None:
        self._model = model
        self._library = import_openvino()
        self._ops = self._library.opset13

    def build(self) -> Any:
        """The openvino.Model: int64 [B, S] ids, mask and types -> float32 [B, S, H]."""
        ids, mask, types = (self._input(name) for name in (INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS))
        hidden = self._embeddings(ids, types)
        is_token = self._ops.unsqueeze(self._ops.convert(mask, "boolean"), self._axes(1, 2))
        for number in range(self._model.num_layers):
            hidden = self._layer(hidden, is_token, f"encoder.layer.{number}")
        return self._library.Model([self._ops.result(hidden)], [ids, mask, types], "bert")

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
        """As engine.model.positions numbers them."""
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
        """Its node has its name, as the nodes of a traced model have."""
        return self._ops.constant(self._model.weights[name], name=name, shared_memory=True)

    def _axis(self, number: int) -> Any:
        return self._ops.constant(np.array(number, np.int64))

    def _axes(self, *numbers: int) -> Any:
        return self._ops.constant(np.array(numbers, np.int64))
