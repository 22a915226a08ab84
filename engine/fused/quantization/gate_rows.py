"""Computes a model's rows for the gate's texts.

Does not know what they are compared with, nor which layers are quantized.

On a CPU each core computes batches of its own: attention there is some small operations for each sequence, and threads
that share them meet so often that, beside other work, they mostly wait for each other (measured with all-MiniLM-L6-v2:
92 s where one thread alone took 22).
"""

import dataclasses
import queue
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from engine.fused.assembly import Model, assemble
from engine.fused.engine import FusedEngine
from engine.fused.quantization.fidelity import Rows
from engine.selftest import selfcheck
from engine.selftest.sample_ids import Sequences

_NUM_TOKENS = 4096  # of a batch: so that quantizing and measuring need no more memory than serving
_NUM_TOKENS_ON_CPU = 1024  # few, so that what a batch goes through stays in a core's cache


class GateRows:
    """The rows of one model; its linear layers may be exchanged between two calls of `rows`."""

    def __init__(self, model: Model) -> None:
        """Raises torch.OutOfMemoryError where there is no room for a batch."""
        is_on_cpu = model.chosen.capability is None
        max_num_tokens = max(_NUM_TOKENS_ON_CPU if is_on_cpu else _NUM_TOKENS, model.chosen.folder.max_seqlen)
        alone = dataclasses.replace(model, num_threads=1)
        self._engines = [
            assemble(alone, max_num_tokens=max_num_tokens, records=False)
            for _ in range(model.num_threads if is_on_cpu else 1)
        ]

    def rows(self, sequences: Sequences) -> Rows:
        """Pooled rows [B, D]. Raises ModelError where an engine fails."""
        if len(self._engines) == 1:
            return selfcheck.rows_of(self._engines[0], sequences)
        order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]), reverse=True)
        rows = self._shared_out([sequences[number] for number in order])
        return rows[np.argsort(order)]

    def _shared_out(self, sequences: Sequences) -> Rows:
        """Longest first: then no engine is left with much when the others are done."""
        idle: queue.SimpleQueue[FusedEngine] = queue.SimpleQueue()
        for engine in self._engines:
            idle.put(engine)

        def computed(batch: Sequences) -> Rows:
            engine = idle.get()
            try:
                return selfcheck.rows_of(engine, batch)
            finally:
                idle.put(engine)

        batches = selfcheck.batches(self._engines[0].limits, sequences)
        with ThreadPoolExecutor(len(self._engines)) as threads:
            return np.concatenate(list(threads.map(computed, batches)))
