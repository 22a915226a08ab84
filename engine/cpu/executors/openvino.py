"""OpenVINO as an executor, in float32, bfloat16 or int8. `import openvino` in here is the library."""

import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.cpu.executor import Executor, Run
from engine.cpu.executors import int8
from engine.machine import host, mapped_files
from engine.machine.free_memory import free_memory
from engine.types import DeviceTrouble, ModelError

if TYPE_CHECKING:
    from engine.cpu.conversion.graph import Graph

logger = logging.getLogger("embedline.engine")

_GRAPH = "model.xml"
_PRECISIONS = {"auto": "f32", "float32": "f32", "bfloat16": "bf16"}
_INT8_GROUP = 128  # numbers of a row that have a scale of their own beside int8 weights
# The wide compilation holds the weights a second time. Larger models do without, and where less than so many times
# their bytes is free.
MAX_WIDE_BYTES = 1 << 30
_FREE_FOR_WIDE = 2
# A short sequence that is computed alone is as long as a multiple of so many tokens: each further length takes memory
# for ever (measurements: decision 9). oneDNN lays bfloat16 weights out for AMX's tiles, anew for many a length.
_MULTIPLES = {"float32": 2, "bfloat16": 4}
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
    if quantization == "int8":
        _check_int8(dtype)
    if dtype == "bfloat16" and "BF16" not in _capabilities():
        raise DeviceTrouble(
            "--dtype bfloat16 needs a CPU with bfloat16 arithmetic, and this one has none; leave it out, or let "
            "--engine transformers imitate it, slowly"
        )


def _capabilities() -> list[str]:
    return list(import_openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def _check_int8(dtype: str) -> None:
    if dtype == "bfloat16":
        raise ModelError("--quantization int8 computes all else in float32; leave --dtype bfloat16 out")
    if not host.multiplies_int8():
        raise ModelError(
            "--quantization int8 needs an x86 CPU with avx512_vnni, avx_vnni or AMX: on other x86 it is slower than "
            "float32, and on ARM it was not measured; leave it out"
        )


def traced(model: "Graph") -> Any:
    """The openvino.Model of a torch model. Calls the PyTorch frontend, because openvino.convert_model reports usage."""
    ov = import_openvino()
    tracing = importlib.import_module("openvino.frontend.pytorch.ts_decoder")
    decoder = tracing.TorchScriptPythonDecoder(model, example_input=model.example())
    frontend = ov.frontend.FrontEndManager().load_by_framework("pytorch")
    graph = frontend.convert(frontend.load(decoder))
    for port, name in zip(graph.inputs, model.example(), strict=True):
        port.get_node().set_friendly_name(name)
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(ov.PartialShape([-1, -1]))
        port.get_node().set_element_type(ov.Type.i64)
    graph.validate_nodes_and_infer_types()
    return graph


def save(graph: Any, target: Path, *, quantization: str) -> int:
    """Write an openvino.Model into the empty folder `target`, for `open_model`.

    Returns the number of quantized matrix products. Raises ModelError if there are none to quantize.
    """
    num_products = int8.quantize(graph) if quantization == "int8" else 0
    if quantization == "int8" and not num_products:
        raise ModelError("--quantization int8 finds no matrix products to quantize in this model")
    import_openvino().save_model(graph, target / _GRAPH, compress_to_fp16=False)
    return num_products


def open_model(folder: Path, *, dtype: str, num_threads: int, has_wide: bool = True) -> Executor:
    """Compile the files of `save`. has_wide: False = not for all cores at once, for which it is compiled again."""
    ov = import_openvino()
    core = ov.Core()
    weights = (folder / _GRAPH).with_suffix(".bin")
    graph = core.read_model(folder / _GRAPH)
    input_names = frozenset(port.get_any_name() for port in graph.inputs)
    settings = {
        "INFERENCE_PRECISION_HINT": _PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": num_threads,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _INT8_GROUP,
        "ENABLE_CPU_PINNING": False,  # two engines would be pinned to the same cores
    }

    def compiled(num_streams: int) -> list[Run]:
        model = core.compile_model(graph, "CPU", {**settings, "NUM_STREAMS": num_streams})
        runs = [_run(ov, model) for _ in range(num_streams)]
        for run in runs:
            run({name: np.full((1, 8), name == "attention_mask", np.int64) for name in input_names})
        # the first run lays the weights out anew: what is read of their file from now on are embeddings of tokens
        mapped_files.release(weights)
        return runs

    streams = compiled(num_threads)
    wide = compiled(1)[0] if has_wide and num_threads > 1 and _has_room_for_wide(weights) else None
    multiple = _MULTIPLE_WITH_AMX if host.has_amx() and dtype == "bfloat16" else _MULTIPLES[dtype]
    return Executor(input_names, streams=tuple(streams), wide=wide, multiple_alone=multiple)


def _has_room_for_wide(weights: Path) -> bool:
    size, free = weights.stat().st_size, free_memory()
    if size > MAX_WIDE_BYTES:
        return False
    if free < _FREE_FOR_WIDE * size:
        logger.warning(
            "a text that is alone is computed on one core: to compile the model for all takes up to %d MiB of memory, "
            "and %d MiB are free",
            _FREE_FOR_WIDE * size >> 20,
            free >> 20,
        )
        return False
    return True


def _run(ov: ModuleType, compiled: Any) -> Run:
    request = compiled.create_infer_request()
    tensors: dict[str, Any] = {}  # whose addresses the request has until it gets others

    def run(inputs: Any) -> NDArray[np.float32]:
        nonlocal tensors
        tensors = {name: ov.Tensor(values, shared_memory=True) for name, values in inputs.items()}
        request.infer(tensors)
        rows: NDArray[np.float32] = request.get_output_tensor(0).data
        return rows

    return run


def import_openvino() -> ModuleType:
    """Import the library without its model converter, whose import sends a report to Google Analytics."""
    # with None its import fails, as in a build of openvino without the converter
    sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")
