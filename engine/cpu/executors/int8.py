"""Makes an OpenVINO graph hold the constant weights of its matrix products in 8 bits.

Each output of a product has a scale and a zero of its own. OpenVINO rounds the rows that it multiplies them with as it
computes, in groups of 128 numbers, so a row does not depend on its neighbours. Embeddings, biases, norms and attention
stay in float32.

    q = uint8(round(W / scale) + zero);  W = (q - zero) * scale
"""

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = 255
_TINY = 1e-12  # a scale, for weights that are all zero


def quantize(graph: Any) -> int:
    """Change an openvino.Model. Returns the number of products."""
    products = [node for node in graph.get_ordered_ops() if _is_product(node)]
    rounded: dict[tuple[str, bool], Any] = {}  # weights are shared by layers, as in ALBERT
    for node in products:
        weights = node.input_value(1).get_node()
        has_outputs_first = bool(node.get_attributes()["transpose_b"])
        key = (weights.get_friendly_name(), has_outputs_first)
        if key not in rounded:
            rounded[key] = _rounded(weights.data, axis=1 if has_outputs_first else 0)
        node.input(1).replace_source_output(rounded[key].output(0))
    graph.validate_nodes_and_infer_types()
    return len(products)


def _is_product(node: Any) -> bool:
    if node.get_type_name() != "MatMul":
        return False
    weights = node.input_value(1).get_node()
    return weights.get_type_name() == "Constant" and len(weights.shape) == 2


def _rounded(weights: NDArray[np.float32], *, axis: int) -> Any:
    """The node that gives the weights again. `axis` is that of a product's inputs."""
    op = importlib.import_module("openvino.opset13")
    lowest = np.minimum(weights.min(axis=axis, keepdims=True), 0)
    highest = np.maximum(weights.max(axis=axis, keepdims=True), 0)
    scale = np.maximum((highest - lowest) / _LARGEST, _TINY).astype(np.float32)
    zero = np.rint(-lowest / scale)
    in_8_bits = np.clip(np.rint(weights / scale) + zero, 0, _LARGEST).astype(np.uint8)
    shifted = op.subtract(
        op.convert(op.constant(in_8_bits), "f32"), op.convert(op.constant(zero.astype(np.uint8)), "f32")
    )
    return op.multiply(shifted, op.constant(scale))
