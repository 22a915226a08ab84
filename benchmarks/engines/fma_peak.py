"""The machine's fp32 limit, measured now: multiply-adds on registers, or matrix products where no C compiler is."""

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_suffix(".c")
_SECONDS = 1.0
_SHAPES = ((1024, 384, 1536), (1024, 1536, 384), (2048, 2048, 2048))


@dataclass(frozen=True, slots=True)
class Peak:
    """All cores together."""

    gflops: float
    num_cores: int
    how: str


def measure_peak() -> Peak:
    """One process a core, all at once, each by its own CPU time, so that neighbours matter little."""
    num_cores = len(os.sched_getaffinity(0))
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        return _best_matrix_product(num_cores)
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/fma_peak"
        command = [compiler, "-O3", "-march=native", "-o", program, str(SOURCE)]
        compiled = subprocess.run(command, capture_output=True, check=False, timeout=60)
        if compiled.returncode:
            return _best_matrix_product(num_cores)
        processes = [
            subprocess.Popen([program, str(_SECONDS)], stdout=subprocess.PIPE, text=True) for _ in range(num_cores)
        ]
        rates = [float(process.communicate(timeout=60)[0].split()[0]) for process in processes]
    return Peak(sum(rates), num_cores, f"register-only multiply-adds in C, {num_cores} processes, by their CPU time")


def _best_matrix_product(num_cores: int) -> Peak:
    """numpy's, with as many threads as it takes; some tenths below what registers alone would give."""
    generator = np.random.default_rng(0)
    best = 0.0
    for m, k, n in _SHAPES:
        a, b = (generator.random(shape, np.float32) for shape in ((m, k), (k, n)))
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            np.matmul(a, b)
            best = max(best, 2e-9 * m * k * n / (time.perf_counter() - began))
    return Peak(best, num_cores, "numpy's best matrix product, for want of a C compiler: below the true limit")
