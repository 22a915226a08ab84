"""Seconds from the start of a process to its first embedding: with nothing cached, and with what that start has cached.

Cached are Triton's kernels, and in FP8 the quantized weights with what the quality gate found; hence tame weights,
which pass it. The folder that a model is read from has just been written, so its files are in the host's memory.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.random_models import build, save
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import MINILM, QWEN3_06B, QWEN3_8B, TINY_BERT
from benchmarks.gpu.targets import BF16, CACHED, FP8, NOTHING_CACHED

KIND = "cold start"
_ROOT = Path(__file__).resolve().parents[2]
_QUANTIZATIONS = {BF16: "none", FP8: "fp8"}
_RUNS = (NOTHING_CACHED, CACHED, "cached, again")
_CASES = ((QWEN3_8B, (FP8,)), (QWEN3_06B, (BF16, FP8)), (MINILM, (BF16,)))
_TINY_CASES = ((TINY_BERT, (BF16, FP8)),)
_PATIENCE = 240.0  # seconds that a process may take


def run(bench: Bench) -> None:
    """Folders are written to disk first; that is not counted."""
    for shape, ways in _TINY_CASES if bench.is_tiny else _CASES:
        keys = {way: [Key(KIND, shape.name, way, name) for name in _runs(bench)] for way in ways}
        missing = [way for way in ways if bench.are_missing(keys[way])]
        if missing:
            bench.check_time()
            with TemporaryDirectory() as folder:
                saved = save(build(shape, bench.clock.device, is_tame=True), Path(folder, "model"))
                bench.release()
                for way in missing:
                    _run(bench, keys[way], saved, Path(folder, way))


def _runs(bench: Bench) -> tuple[str, ...]:
    return _RUNS[: 2 if bench.is_tiny else None]


def _run(bench: Bench, keys: list[Key], model: Path, caches: Path) -> None:
    """All of them even if some are known: what those cached is gone."""
    for key in keys:
        work = partial(_start, str(bench.clock.device), model, key.precision, caches)
        bench.measure(key, work, again=True)


def _start(device: str, model: Path, way: str, caches: Path) -> Iterator[Figure]:
    options = {"path": str(model), "device": device, "quantization": _QUANTIZATIONS[way], "cache": str(caches)}
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"TRITON_CACHE_DIR": str(caches / "triton"), "PYTHONPATH": path}
    command = (sys.executable, "-m", "benchmarks.gpu.cold_start_process", json.dumps(options))
    began = time.perf_counter()
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        impatience = threading.Timer(_PATIENCE, process.kill)
        impatience.start()
        line = process.stdout.readline()
        took = time.perf_counter() - began
        process.wait()
        impatience.cancel()
        errors.seek(0)
        last = errors.read().strip().rpartition("\n")[2]
    if not line or process.returncode:
        raise RuntimeError(last or f"the process ended with {process.returncode}")
    if way == FP8 and not any(caches.rglob("*.safetensors")):
        raise RuntimeError("no quantized weights were kept")
    said: dict[str, Any] = json.loads(line)
    notes = "; ".join(said["notes"]).replace(str(caches), "the cache")
    yield Figure("to the first embedding", took, "s", notes)
    yield from (Figure(name, seconds, "s") for name, seconds in said["steps"].items())
