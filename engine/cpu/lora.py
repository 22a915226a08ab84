"""Adapters by name (LoRA), which one compiled model computes beside its base: their matrices are inputs of its graph.

The base and the model with an adapter are the two bodies of an If, so a request without an adapter costs what it would
cost without any: with matrices of rank 0 a text of 8 tokens took 4 % longer (BERT-base), and 20 % with a small model.
The bodies share most of what OpenVINO makes of the weights: BERT-base in float32 takes 1.4 times the memory, in
bfloat16 1.2 times; two compiled models would take twice as much.

For each layer W the second body computes

    y = f (W x + s B A x) + s c + bias

with A [rank, in] and s B [out, rank], and where some adapter has them DoRA's f [out] and lora_bias's s c [out]. For a
layer that an adapter leaves alone it gets rank 0, f = 1 and s c = 0. Ranks may differ. An adapter's numbers are held
once, in float32, as its file has them, whatever reads them.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.lora import WEIGHTS, Adapter, AdapterLayer, fitted
from engine.model.weights import read_tensors
from engine.types import ModelError

LORA = "lora"  # the name by which a Run is told the adapter of a mini-batch
_IS_BASE = "is_base"
_NUM_READERS = 4
_POOLER = "pooler"  # a layer whose rows nobody may ask for, but which PEFT's target_modules="all-linear" adapts

_Numbers = NDArray[np.float32]
_Sizes = Mapping[str, tuple[int, int]]  # [out, in] by the layer's name


def inputs_of(adapters: Iterable[Adapter]) -> list[str]:
    """The names of what a graph gets for these adapters: all that it depends on."""
    return sorted({f"{layer} {part}" for one in adapters for layer, own in one.layers.items() for part in _parts(own)})


def _parts(layer: AdapterLayer) -> tuple[str, ...]:
    return "a", "b", *(("factor",) if layer.magnitude else ()), *(("bias",) if layer.bias else ())


def most_telling(adapters: Sequence[Adapter]) -> int:
    """The number of the adapter that uses the most inputs: the one which the self-test compares."""
    return 1 + max(range(len(adapters)), key=lambda number: len(inputs_of([adapters[number]])))


def fit(adapter: Adapter, sizes: _Sizes) -> dict[str, AdapterLayer]:
    """Its layers by the names that the model has for them, without a pooler that the model does not compute. Raises
    ModelError for another layer that the model lacks."""
    has_pooler = any(_is_of_pooler(name) for name in sizes)
    layers = {name: layer for name, layer in adapter.layers.items() if has_pooler or not _is_of_pooler(name)}
    return fitted(replace(adapter, layers=layers), sizes)


def _is_of_pooler(name: str) -> bool:
    return _POOLER in name.split(".")


def numbers_of(adapter: Adapter) -> dict[str, _Numbers]:
    """All tensors of its file, by name. Raises ModelError if they are not finite."""
    found = read_tensors(adapter.folder / WEIGHTS)
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise ModelError(f"{name!r} in {adapter.folder / WEIGHTS} is not finite")
    return found


class Loras:
    """The adapters of a model."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        """Read their numbers. Raises ModelError."""
        self._adapters = adapters
        with ThreadPoolExecutor(_NUM_READERS) as pool:  # to get the memory for a hundred takes long
            self._numbers = list(pool.map(numbers_of, adapters))
        self._tensors: list[dict[str, Any]] = []  # of each number, by the names of inputs

    @cached_property
    def _library(self) -> Any:
        """OpenVINO, which has no types, as engine.cpu.openvino has imported it."""
        return importlib.import_module("openvino")

    def put_into(self, graph: Any) -> Any:
        """A graph that computes the base or one of the adapters. Takes the openvino.Model, and needs it. Raises
        ModelError for an adapter that does not fit."""
        body = graph.clone()
        products = _products(body)
        sizes = {name: _size(nodes[0]) for name, nodes in products.items()}
        layers = [fit(adapter, sizes) for adapter in self._adapters]
        parts: dict[str, set[str]] = {}
        for of_one in layers:
            for name, layer in of_one.items():
                parts.setdefault(name, set()).update(_parts(layer))
        if not self._tensors:
            self._tensors = list(self._made(layers, parts, products))
            self._numbers.clear()  # the tensors hold on to what they need
        for name, some in parts.items():
            self._extend(body, products[name], name, some)
        body.validate_nodes_and_infer_types()
        return self._chosen(graph, body)

    def of_request(self, request: Any) -> "LorasOfRequest":
        """What sets the inputs of a request. Several requests may have one at a time."""
        return LorasOfRequest(self._library, request, self._tensors)

    def _extend(self, body: Any, nodes: Sequence[Any], name: str, parts: set[str]) -> None:
        """Add an adapter to what these products give, which share a layer's weights."""
        ops, (num_outputs, num_inputs) = self._library.opset13, _size(nodes[0])
        shapes = {"a": [-1, num_inputs], "b": [num_outputs, -1], "factor": [num_outputs], "bias": [num_outputs]}
        given = {part: self._input(f"{name} {part}", shapes[part]) for part in sorted(parts)}
        body.add_parameters(list(given.values()))
        for node in nodes:
            targets = node.output(0).get_target_inputs()
            low = ops.matmul(node.input_value(0), given["a"], False, True)
            found = ops.add(node, ops.matmul(low, given["b"], False, True))
            if "factor" in given:
                found = ops.multiply(found, given["factor"])
            if "bias" in given:
                found = ops.add(found, given["bias"])
            for target in targets:
                target.replace_source_output(found.output(0))

    def _input(self, name: str, shape: Any, dtype: Any = np.float32) -> Any:
        parameter = self._library.opset13.parameter(shape, dtype, name=name)
        parameter.output(0).get_tensor().set_names({name})
        return parameter

    def _chosen(self, base: Any, body: Any) -> Any:
        """Either graph, with the inputs of both. OpenVINO looks at all nodes of the bodies with each input, so these
        get theirs afterwards."""
        ops, is_base = self._library.opset13, self._input(_IS_BASE, [], np.bool_)
        either = ops.if_op(is_base)
        bodies = [self._library.Model([ops.result(each.input(0))], each.get_parameters()) for each in (base, body)]
        either.set_then_body(bodies[0])
        either.set_else_body(bodies[1])
        in_base = {_name(each): each for each in base.get_parameters()}
        inputs = [is_base]
        for each in body.get_parameters():
            given = self._input(_name(each), each.get_partial_shape(), each.get_element_type())
            either.set_input(given.output(0), in_base.get(_name(each)), each)
            inputs.append(given)
        for of_if, each in zip(bodies, (base, body), strict=True):
            of_if.add_results(each.get_results())
            of_if.remove_result(of_if.get_results()[0])
        rows = either.set_output(base.get_results()[0], body.get_results()[0])
        return self._library.Model([ops.result(rows)], inputs, base.get_friendly_name())

    def _made(
        self, layers: Sequence[Mapping[str, AdapterLayer]], parts: Mapping[str, set[str]], products: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """The tensors of no adapter, and of each."""
        none: dict[str, Any] = {}
        for name, some in parts.items():
            num_outputs, num_inputs = _size(products[name][0])
            empty = {
                "a": np.zeros((0, num_inputs), np.float32),
                "b": np.zeros((num_outputs, 0), np.float32),
                "factor": np.ones(num_outputs, np.float32),
                "bias": np.zeros(num_outputs, np.float32),
            }
            none |= {f"{name} {part}": self._tensor(empty[part]) for part in some}
        yield none
        squares: dict[str, _Numbers] = {}
        for numbers, of_one in zip(self._numbers, layers, strict=True):
            own = dict(none)
            for name, layer in of_one.items():
                a, b = numbers[layer.a.name], numbers[layer.b.name]
                b *= np.float32(layer.scale)
                own |= {f"{name} a": self._tensor(a), f"{name} b": self._tensor(b)}
                if layer.magnitude is not None:
                    weights = _weights(products[name][0])
                    if name not in squares:
                        squares[name] = np.square(weights).sum(axis=1)
                    lengths = np.sqrt(squares[name] + ((2 * (weights @ a.T) + b @ (a @ a.T)) * b).sum(axis=1))
                    own[f"{name} factor"] = self._tensor(numbers[layer.magnitude.name] / lengths)
                if layer.bias is not None:
                    own[f"{name} bias"] = self._tensor(np.float32(layer.scale) * numbers[layer.bias.name])
            yield own

    def _tensor(self, values: _Numbers) -> Any:
        """It holds on to the array, and copies nothing."""
        return self._library.Tensor(values, shared_memory=True)


class LorasOfRequest:
    """The adapter whose tensors one request has. They are set anew only where another one is asked for."""

    def __init__(self, library: Any, request: Any, tensors: Sequence[Mapping[str, Any]]) -> None:
        self._request, self._tensors = request, tensors
        self._is_base = [library.Tensor(np.array(is_base)) for is_base in (False, True)]
        self._number = 0
        request.set_tensors(tensors[0])

    def choose(self, number: int) -> None:
        """Compute the base (0) or an adapter from now on. Raises IndexError for a number that none has."""
        if number and number != self._number:
            self._request.set_tensors(self._tensors[number])
            self._number = number
        self._request.set_tensor(_IS_BASE, self._is_base[number == 0])


def _name(parameter: Any) -> str:
    found: str = parameter.output(0).get_any_name()
    return found


def _products(graph: Any) -> dict[str, list[Any]]:
    """The graph's products with weights, by the layer's name: several where layers share them, as in ALBERT."""
    found: dict[str, list[Any]] = {}
    for node in graph.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            name = node.input_value(1).get_node().get_friendly_name().removeprefix("self.model.")
            if name.endswith(".weight") and len(node.get_input_shape(1)) == 2:
                found.setdefault(name.removesuffix(".weight"), []).append(node)
    return found


def _size(node: Any) -> tuple[int, int]:
    rows, columns = node.get_input_shape(1)
    return (rows, columns) if node.get_attributes()["transpose_b"] else (columns, rows)


def _weights(node: Any) -> _Numbers:
    """[out, in] of a product, also where engine.cpu.openvino has made 8 bits of them."""
    found: _Numbers = _constant(node.input_value(1).get_node())
    return found if node.get_attributes()["transpose_b"] else found.T


def _constant(node: Any) -> _Numbers:
    if node.get_type_name() == "Constant":
        found: _Numbers = node.data.astype(np.float32, copy=False)
        return found
    inputs = [_constant(value.get_node()) for value in node.input_values()]
    match node.get_type_name():
        case "Convert":
            return inputs[0]
        case "Subtract":
            return inputs[0] - inputs[1]
    assert node.get_type_name() == "Multiply", node
    return inputs[0] * inputs[1]
