"""Makes an ONNX model compute its matrix products with constant weights in int8.

Each token's row is scaled by its own largest value before it is rounded to 8 bits, and each column of the weights by
its own. ONNX Runtime's own dynamic quantization scales a whole batch by its largest value instead: one outlier then
costs all tokens precision, and a row depends on its neighbours (decision 9 has the measurements). Embeddings, biases,
norms and attention stay in float32.

    scale = max |row|;  q = uint8(round(row / scale * 127) + 128)
    row @ W = scale / 127 * ((q - 128) @ Wq) * column_scales
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

_DOMAIN = "com.microsoft"  # of MatMulIntegerToFloat, see ContribOperators.md of ONNX Runtime
_MAX_FILE = 1 << 30  # bytes of weights in one file; protobuf ends at 2 GiB
_STEP, _ZERO, _TINY = "int8.step", "int8.zero", "int8.tiny"


def quantize(source: Path, target: Path, *, max_weight: int) -> int:
    """Read a float32 model and write it in int8, with weights in ± max_weight. Returns the number of products."""
    model = onnx.load(source)
    _name_shared_weights_once(model.graph)
    quantizer = _Quantizer(model.graph, max_weight)
    nodes = [node for old in model.graph.node for node in quantizer.replace(old)]
    kept = quantizer.initializers()
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(kept)
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    is_large = sum(len(tensor.raw_data) for tensor in kept) > _MAX_FILE
    onnx.save(model, target, save_as_external_data=is_large, location="weights.bin" if is_large else None)
    return quantizer.num_replaced


def _name_shared_weights_once(graph: onnx.GraphProto) -> None:
    """Undo the exporter's Identity nodes, which rename weights that layers share, as in ALBERT."""
    weights = {tensor.name for tensor in graph.initializer}
    copies = [node for node in graph.node if node.op_type == "Identity" and node.input[0] in weights]
    names = {node.output[0]: node.input[0] for node in copies}
    for node in copies:
        graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]


class _Quantizer:
    """Replaces nodes one by one, in order."""

    def __init__(self, graph: onnx.GraphProto, max_weight: int) -> None:
        self._max_weight = max_weight
        self._old = {tensor.name: tensor for tensor in graph.initializer}
        self._used_elsewhere = {name for node in graph.node if not self._is_product(node) for name in node.input}
        self._new: dict[str, NDArray[Any]] = {
            _STEP: np.array(1 / 127, np.float32),
            _ZERO: np.array(128, np.uint8),
            _TINY: np.array(1e-12, np.float32),  # for a row of zeros
        }
        self._inputs: set[str] = set()  # that are rounded already
        self._weights: set[str] = set()
        self.num_replaced = 0

    def replace(self, node: NodeProto) -> Iterable[NodeProto]:
        """The nodes that replace this one. Only products with constant weights change."""
        if not self._is_product(node):
            return [node]
        self.num_replaced += 1
        rows, weights, output = node.input[0], node.input[1], node.output[0]
        bias = node.input[2] if len(node.input) > 2 else ""
        without_bias = f"{output}.without_bias" if bias else output
        self._round_weights(weights)
        product = helper.make_node(
            "MatMulIntegerToFloat",
            [f"{rows}.q", f"{weights}.q", _STEP, f"{weights}.scale", _ZERO, f"{weights}.zero"],
            [f"{output}.scaled"],
            domain=_DOMAIN,
        )
        return [
            *self._round_rows(rows),
            product,
            helper.make_node("Mul", [f"{output}.scaled", f"{rows}.max"], [without_bias]),
            *([helper.make_node("Add", [without_bias, bias], [output])] if bias else []),
        ]

    def initializers(self) -> list[onnx.TensorProto]:
        """The initializers of the new graph."""
        gone = self._weights - self._used_elsewhere
        kept = [tensor for name, tensor in self._old.items() if name not in gone]
        return kept + [numpy_helper.from_array(array, name) for name, array in self._new.items()]

    def _is_product(self, node: NodeProto) -> bool:
        is_plain = node.op_type == "MatMul" or (node.op_type == "Gemm" and _is_plain_gemm(node))
        return is_plain and node.input[1] in self._old and len(self._old[node.input[1]].dims) == 2

    def _round_rows(self, rows: str) -> list[NodeProto]:
        if rows in self._inputs:  # queries, keys and values are made from the same rows
            return []
        self._inputs.add(rows)
        return [
            helper.make_node("Abs", [rows], [f"{rows}.abs"]),
            helper.make_node("ReduceMax", [f"{rows}.abs"], [f"{rows}.largest"], axes=[-1], keepdims=1),
            helper.make_node("Max", [f"{rows}.largest", _TINY], [f"{rows}.max"]),
            helper.make_node("Div", [rows, f"{rows}.max"], [f"{rows}.unit"]),
            helper.make_node("QuantizeLinear", [f"{rows}.unit", _STEP, _ZERO], [f"{rows}.q"]),
        ]

    def _round_weights(self, name: str) -> None:
        if name in self._weights:  # shared by layers, as in ALBERT
            return
        self._weights.add(name)
        weights: NDArray[np.float32] = numpy_helper.to_array(self._old[name])
        scale = np.maximum(np.abs(weights).max(axis=0) / self._max_weight, 1e-12).astype(np.float32)
        self._new[f"{name}.q"] = np.rint(weights / scale).astype(np.int8)
        self._new[f"{name}.scale"] = scale
        self._new[f"{name}.zero"] = np.zeros(len(scale), np.int8)


def _is_plain_gemm(node: NodeProto) -> bool:
    """Whether it is rows @ W + bias, as in GPT-2."""
    default = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    return all(helper.get_attribute_value(attribute) == default[attribute.name] for attribute in node.attribute)
