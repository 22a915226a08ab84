"""ONNX Runtime as an executor, float32 or int8. `import onnxruntime` in here is the library."""

import importlib
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.cpu.engine import CompiledEngine
from engine.cpu.executor import Executor, Run
from engine.cpu.loading import load_with
from engine.cpu.minibatch import INPUT_IDS, MAX_PADDED_TOKENS, OUTPUT
from engine.machine import host
from engine.messages import LoadOptions
from engine.types import ModelError

if TYPE_CHECKING:
    from engine.cpu.conversion.graph import Graph

_GRAPH = "model.onnx"
_ERRORS_ONLY = 3
_MIN_WIDE_TOKENS = 128  # its threads sleep between operators; waking them costs as much as a short query gains
# The wide compilation holds the weights a second time; larger models do without.
MAX_WIDE_BYTES = 1 << 30


class OnnxRuntime:
    """See executor.Backend."""

    name = "onnxruntime"
    packages = ("onnxruntime", "onnx")
    quantizations = ("none", "int8")
    has_bfloat16 = False
    num_score_copies = 4.5  # measured at 2,048 and 8,192 tokens

    def check(self, dtype: str) -> None:
        """See executor.Backend."""
        if dtype not in ("auto", "float32"):
            raise ModelError(f"--dtype {dtype} is not one of auto, float32 for the onnxruntime engine")

    def convert(self, model: "Graph", target: Path, *, quantization: str) -> int:
        """See executor.Backend."""
        from engine.cpu.executors.int8 import quantize  # imports onnx

        if quantization == "none":
            model.export_onnx(target / _GRAPH)
            return 0
        with tempfile.TemporaryDirectory(dir=target) as scratch:
            model.export_onnx(Path(scratch, _GRAPH))
            num_products = quantize(Path(scratch, _GRAPH), target / _GRAPH, max_weight=host.max_int8_weight())
        if not num_products:
            raise ModelError("--quantization int8 finds no matrix products to quantize in this model")
        return num_products

    def open(self, folder: Path, *, dtype: str, num_threads: int) -> Executor:
        """See executor.Backend."""
        num_bytes = sum(file.stat().st_size for file in folder.iterdir())
        ort = import_onnxruntime()
        streams = _session(ort, folder / _GRAPH, num_threads=1)
        has_wide = num_threads > 1 and num_bytes <= MAX_WIDE_BYTES
        return Executor(
            input_names=frozenset(port.name for port in streams.get_inputs()),
            streams=(_run(ort, streams),) * num_threads,  # many threads may run one session
            wide=_run(ort, _session(ort, folder / _GRAPH, num_threads=num_threads)) if has_wide else None,
            min_wide_tokens=_MIN_WIDE_TOKENS,
        )


def import_onnxruntime() -> ModuleType:
    """Import the library without its telemetry. Otherwise the import alone would look up a Microsoft host and write
    files to the user's cache, before disable_telemetry_events() can be called.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    ort = importlib.import_module("onnxruntime")
    ort.disable_telemetry_events()
    return ort


def _session(ort: ModuleType, file: Path, *, num_threads: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it is for repeated shapes
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def _run(ort: ModuleType, session: Any) -> Run:
    returning = ort.RunOptions()  # the memory of a long sequence to the system; the session would keep it
    returning.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(inputs: Any) -> NDArray[np.float32]:
        is_long = inputs[INPUT_IDS].size > MAX_PADDED_TOKENS
        rows: NDArray[np.float32] = session.run([OUTPUT], dict(inputs), returning if is_long else None)[0]
        return rows

    return run


def load(*, name: str, reason: str, options: LoadOptions) -> CompiledEngine:
    """See loading.load_with. Raises ModelError."""
    return load_with(OnnxRuntime(), name=name, reason=reason, options=options)
