"""All that is measured of whole models without a server, model by model, so that each is made once."""

import gc

from benchmarks.gpu import latency, mixed, padding, throughput
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.shapes import BGE_M3, MINILM, QWEN3_06B, QWEN3_8B, TINY
from benchmarks.gpu.subject import Subject

_MODELS = (QWEN3_06B, QWEN3_8B, BGE_M3, MINILM)


def run(bench: Bench) -> None:
    """A model of which all is measured is not made."""
    for shape in TINY if bench.is_tiny else _MODELS:
        subject = Subject(shape, bench.clock.device)
        for measurement in (throughput, latency, padding, mixed):
            measurement.run(bench, subject)
        del subject
        gc.collect()  # engines and their graphs know each other
        bench.release()
