"""The first batches of a freshly loaded engine: is what it gives whole, and how fast is it?"""

import time

import numpy as np
from numpy.typing import NDArray

from engine.types import Batch, Engine, EngineError, ModelError, OutputKind, Results

_SEQLENS = (1, 5, 5, 16)  # tokens; equal lengths are there on purpose
_RATE_SECONDS = 0.3  # about how long the measured batch may take
_MAX_RATE_SEQLEN = 128


def warm_up(engine: Engine) -> float:
    """Run two batches and return tokens per second. Raises ModelError where a row is not as it should be."""
    outputs = OutputKind(engine.info.outputs & -engine.info.outputs)  # the lowest flag: what it is mainly for
    seqlens = [min(seqlen, engine.limits.max_seqlen) for seqlen in _SEQLENS]
    _run(engine, outputs, seqlens)  # the very first batch also pays for lazy initialisation
    seconds = _run(engine, outputs, seqlens)
    seqlen = min(_MAX_RATE_SEQLEN, engine.limits.max_seqlen)
    affordable = int(_RATE_SECONDS / max(seconds, 1e-6) * sum(seqlens))
    num_seqs = min(affordable, engine.limits.max_num_tokens) // seqlen
    num_seqs = max(1, min(num_seqs, engine.limits.max_num_seqs))
    return num_seqs * seqlen / max(_run(engine, outputs, [seqlen] * num_seqs), 1e-6)


def _run(engine: Engine, outputs: OutputKind, seqlens: list[int]) -> float:
    """Seconds of one batch of arbitrary ids."""
    cu_seqlens: NDArray[np.int32] = np.cumsum([0, *seqlens], dtype=np.int32)
    token_ids = np.arange(cu_seqlens[-1], dtype=np.int32) % engine.info.vocab_size
    began = time.perf_counter()
    engine.submit(Batch(engine.info.name, outputs, token_ids, cu_seqlens))
    _, results = engine.collect()
    seconds = time.perf_counter() - began
    if isinstance(results, EngineError):
        raise ModelError(f"the warm-up batch failed: {results}")
    _check(engine, results, num_seqs=len(seqlens))
    return seconds


def _check(engine: Engine, results: Results, *, num_seqs: int) -> None:
    for kind, rows in results.items():
        if kind is OutputKind.POOLED and rows.values.shape != (num_seqs, engine.info.dimensions):
            raise ModelError(
                f"the model gives rows of shape {rows.values.shape}, not {(num_seqs, engine.info.dimensions)}"
            )
        if not np.isfinite(rows.values).all():
            raise ModelError("the model gives rows that are not finite")
