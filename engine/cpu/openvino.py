"""OpenVINO, which compiles a converted model in float32, bfloat16, float16 or int8. `import openvino` is the library.
Imports no torch.

In int8 the constant weights of matrix products have 8 bits. Each output of a product has a scale and a zero of its own.
OpenVINO rounds the rows that it multiplies them with as it computes, in groups of 128 numbers, so a row does not depend
on its neighbours. Embeddings, biases, norms and attention stay in float32.

    q = uint8(round(W / scale) + zero);  W = (q - zero) * scale

Shapes: B sequences in a padded mini-batch, S tokens of its longest, D numbers a row.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.cpu.lora import LORA, Loras
from engine.machine import host
from engine.types import DeviceTrouble, ModelError

# int64 [B, S] by name of the input, and the adapter of all as LORA -> float32 [B, S, D], or [B, D] where a sequence has
# one row; valid until the next call of the same function
Run = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Executor:
    """A compiled model. A Run is called by one thread at a time; different ones may be called at the same time."""

    input_names: frozenset[str]
    streams: tuple[Run, ...]  # one core each, or several of a large model
    num_threads: int  # of all streams
    wide: Run | None  # on all cores at once; None with one core, where it gains nothing, or without memory for it
    multiple_alone: int  # a short sequence that is computed alone is as long as a multiple of so many tokens
    least_wide: int | None = None  # see engine.cpu.all_cores; None = not measured
    num_long_streams: int | None = None  # those that may compute the longest sequences at a time; None = all


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
            rounded[key].set_friendly_name(weights.get_friendly_name())  # by which adapters find the layer
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


logger = logging.getLogger("embedline.engine")

_GRAPH = "model.xml"
_PRECISIONS = {"auto": "f32", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_CAPABILITIES = {"bfloat16": "BF16", "float16": "FP16"}  # what OpenVINO calls a CPU's arithmetic
_INT8_GROUP = 128  # numbers of a row that have a scale of their own beside int8 weights
# The wide compilation holds the weights a second time, so it is left out where less than so many times their bytes is
# free. With twice that both are compiled at the same time. Of larger models each stream has so many cores or a few
# more: these compute as much in bulk as more streams of one core each, and a lone text takes half the time (decision
# 9).
_FREE_FOR_WIDE = 2
_MAX_WIDE_BYTES = 1 << 30
_CORES_OF_LARGE = 4
# A short sequence that is computed alone is as long as a multiple of so many tokens: each further length takes memory
# for ever (measurements: decision 9). oneDNN lays bfloat16 weights out for AMX's tiles, anew for many a length.
# float16 was not measured, and is taken for bfloat16.
_MULTIPLES = {"float32": 2, "bfloat16": 4, "float16": 4}
_MULTIPLE_WITH_AMX = 8

NAME = "openvino"
PACKAGES = ("openvino",)  # whose versions the compiled model depends on


def check(dtype: str, quantization: str) -> None:
    """Raises ModelError if this machine can't compute in the dtype, or in int8; DeviceTrouble if another engine could
    only imitate what the CPU lacks."""
    if dtype not in _PRECISIONS:
        raise ModelError(f"--dtype {dtype} is not one of {', '.join(_PRECISIONS)} for the openvino engine")
    if quantization not in ("none", "int8"):
        raise ModelError(f"--quantization {quantization} is not for the openvino engine on the CPU")
    if quantization == "int8" and dtype in _CAPABILITIES:
        raise ModelError(f"--quantization int8 computes all else in float32; leave --dtype {dtype} out")
    if quantization == "int8" and not host.multiplies_int8():
        raise ModelError(
            "--quantization int8 needs an x86 CPU with avx512_vnni, avx_vnni or AMX: on other x86 it is slower than "
            "float32, and on ARM it was not measured; leave it out"
        )
    if dtype in _CAPABILITIES and not _can_compute_in(dtype):
        error = DeviceTrouble if dtype == "bfloat16" else ModelError  # auto has always served float16 by transformers
        raise error(
            f"--dtype {dtype} needs a CPU with {dtype} arithmetic, and this one has none; leave it out, or let "
            "--engine transformers imitate it, slowly"
        )


def _can_compute_in(dtype: str) -> bool:
    listed: list[str] = import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return _CAPABILITIES[dtype] in listed


def save(graph: Any, target: Path, *, quantization: str) -> int:
    """Write an openvino.Model into the empty folder `target`, for `open_model`.

    Returns the number of quantized matrix products. Raises ModelError if there are none to quantize.
    """
    num_products = quantize(graph) if quantization == "int8" else 0
    if quantization == "int8" and not num_products:
        raise ModelError("--quantization int8 finds no matrix products to quantize in this model")
    import_openvino().save_model(graph, target / _GRAPH, compress_to_fp16=False)
    return num_products


def open_model(
    folder: Path, *, dtype: str, num_threads: int, has_wide: bool = True, loras: Loras | None = None
) -> Executor:
    """Compile the files of `save`. has_wide: False = not for all cores at once, for which it is compiled again. Raises
    ModelError if the adapters do not fit."""
    ov = import_openvino()
    core = ov.Core()
    weights = (folder / _GRAPH).with_suffix(".bin")
    graph = core.read_model(folder / _GRAPH)
    input_names = frozenset(port.get_any_name() for port in graph.inputs)
    if loras is not None:
        graph, input_names = loras.put_into(graph), input_names | {LORA}
    settings = {
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": num_threads,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _INT8_GROUP,
        "ENABLE_CPU_PINNING": False,  # two engines would be pinned to the same cores
    }

    def compiled(num_streams: int) -> list[Run]:
        model = core.compile_model(graph, "CPU", {**settings, "NUM_STREAMS": num_streams})
        runs = [_run(ov, model, loras) for _ in range(num_streams)]
        inputs = {name: np.full((1, 8), name == "attention_mask", np.int64) for name in input_names}
        for run in runs:
            run(inputs)
            if loras is not None:
                run({**inputs, LORA: np.ones(1, np.int64)})
        # the first run lays the weights out anew: what is read of their file from now on are embeddings of tokens
        host.release_mapped(weights)
        return runs

    def for_all_cores() -> Run | None:
        return compiled(1)[0] if _has_room_for_wide(weights) else None

    size = weights.stat().st_size
    is_large = size > _MAX_WIDE_BYTES
    num_streams = max(1, num_threads // _CORES_OF_LARGE) if is_large else num_threads
    has_room = host.free_memory() >= 2 * _FREE_FOR_WIDE * size
    with ThreadPoolExecutor(2 if has_room else 1) as pool:  # with one, the streams first
        streams = pool.submit(compiled, num_streams)
        wide = pool.submit(for_all_cores) if has_wide and num_streams > 1 and not is_large else None
    multiple = _MULTIPLE_WITH_AMX if host.has_amx() and dtype in _CAPABILITIES else _MULTIPLES[dtype]
    return Executor(input_names, tuple(streams.result()), num_threads, wide.result() if wide else None, multiple)


def release_file(folder: Path) -> None:
    """Give back what a test read of the weights' file. What OpenVINO keeps for long sequences stays: the method with
    which OpenVINO 2026.4 releases it left models that failed later, or ended the process (decision 9)."""
    host.release_mapped((folder / _GRAPH).with_suffix(".bin"))


def _has_room_for_wide(weights: Path) -> bool:
    size, free = weights.stat().st_size, host.free_memory()
    if free < _FREE_FOR_WIDE * size:
        logger.warning(
            "a text that is alone is computed on one core: to compile the model for all takes up to %d MiB of memory, "
            "and %d MiB are free",
            _FREE_FOR_WIDE * size >> 20,
            free >> 20,
        )
        return False
    return True


def _run(ov: ModuleType, compiled: Any, loras: Loras | None) -> Run:
    request = compiled.create_infer_request()
    chosen = loras.of_request(request) if loras else None
    tensors: dict[str, Any] = {}  # whose addresses the request has until it gets others

    def run(inputs: Any) -> NDArray[np.float32]:
        nonlocal tensors
        if chosen is not None:
            chosen.choose(int(inputs[LORA].flat[0]))
        tensors = {name: ov.Tensor(values, shared_memory=True) for name, values in inputs.items() if name != LORA}
        request.set_tensors(tensors)
        request.infer(share_outputs=True)  # or it copies them
        rows: NDArray[np.float32] = request.get_output_tensor(0).data
        return rows

    return run


def import_openvino() -> ModuleType:
    """Import the library without its model converter, whose import sends a report to Google Analytics."""
    # with None its import fails, as in a build of openvino without the converter
    sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")
