"""A model's answers to the gate's texts, and what they lose where bfloat16 stands for float32.

On a CPU each core computes batches of its own. Attention there is some small operations for each sequence, and threads
that share them meet so often that, beside other work, they mostly wait for each other (measured with all-MiniLM-L6-v2:
92 s where one thread alone took 22).
"""

import dataclasses
import itertools
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from engine.fused.assembly import Model, assemble
from engine.fused.cuda_device import free_memory
from engine.fused.engine import FusedEngine
from engine.fused.model.reference import ReferenceOps
from engine.fused.offer import FusedConfig
from engine.fused.outputs import load_modules_of
from engine.fused.quantization import gate_texts
from engine.fused.quantization.gate_texts import GateTexts
from engine.fused.quantization.measures import Answers, Measure, Measured
from engine.selftest import selfcheck
from engine.selftest.comparison import batch_of, joined
from engine.types import DeviceTrouble, EngineError, EngineErrorKind, OutputKind, Results, Rows, compute

_NUM_TOKENS = 4096  # of a batch of the gate's: so that quantizing and measuring need no more memory than serving
_NUM_TOKENS_ON_CPU = 1024  # few, so that what a batch goes through stays in a core's cache
_NUM_SEQS_OF_PLAIN = 64  # of a batch of a model that is loaded for its noise

_RowsOfText = dict[OutputKind, NDArray[np.float32]]


class GateAnswers:
    """The answers of one model; its linear layers may be exchanged between two calls."""

    def __init__(self, model: Model, texts: GateTexts) -> None:
        """Raises torch.OutOfMemoryError where there is no room for a batch."""
        self._texts = texts
        # Rows of tokens that come with embeddings are what these are made of, and users have them from few models.
        self._outputs = model.chosen.folder.outputs & ~OutputKind.TOKENS
        is_on_cpu = model.chosen.capability is None
        max_num_tokens = max(_NUM_TOKENS_ON_CPU if is_on_cpu else _NUM_TOKENS, model.chosen.folder.max_seqlen)
        alone = dataclasses.replace(model, num_threads=1)
        self._engines = [
            assemble(alone, max_num_tokens=max_num_tokens, records=False)
            for _ in range(model.num_threads if is_on_cpu else 1)
        ]

    def __call__(self, numbers: Sequence[int]) -> Answers:
        """The answers to the texts with these numbers. Raises ModelError where an engine fails."""
        sequences = self._texts.sequences
        # The longest first: then no engine is left with much when the others are done.
        order = sorted(numbers, key=lambda number: len(sequences[number]), reverse=True)
        sizes = [
            len(some) for some in selfcheck.batches(self._engines[0].limits, [sequences[number] for number in order])
        ]
        ends = list(itertools.accumulate(sizes))
        batches = [order[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        by_number = dict(pair for found in self._shared_out(batches) for pair in found)
        return {kind: [by_number[number][kind] for number in numbers] for kind in self._outputs}

    def _shared_out(self, batches: list[list[int]]) -> list[list[tuple[int, _RowsOfText]]]:
        """For each batch its texts' numbers with the rows of each."""
        idle: queue.SimpleQueue[FusedEngine] = queue.SimpleQueue()
        for engine in self._engines:
            idle.put(engine)

        def computed(batch: list[int]) -> list[tuple[int, _RowsOfText]]:
            engine = idle.get()
            try:
                results = self._computed(engine, batch)
            finally:
                idle.put(engine)
            rows = {kind: _by_text(own, len(batch)) for kind, own in results.items()}
            return [(number, {kind: own[at] for kind, own in rows.items()}) for at, number in enumerate(batch)]

        with ThreadPoolExecutor(len(self._engines)) as threads:
            return list(threads.map(computed, batches))

    def _computed(self, engine: FusedEngine, numbers: list[int]) -> Results:
        texts = self._texts
        types = None if texts.types is None else np.concatenate([texts.types[number] for number in numbers])
        batch = batch_of([texts.sequences[number] for number in numbers], self._outputs, model=engine.info.name)
        results = compute(engine, dataclasses.replace(batch, token_type_ids=types))
        if isinstance(results, EngineError):
            if results.kind is EngineErrorKind.OUT_OF_MEMORY and len(numbers) > 1:  # as the batch manager does
                middle = len(numbers) // 2
                return joined([self._computed(engine, half) for half in (numbers[:middle], numbers[middle:])])
            raise selfcheck.cannot_run(engine.info.engine, results)
        return results


def _by_text(rows: Rows, num_texts: int) -> list[NDArray[np.float32]]:
    offsets = np.arange(num_texts + 1) if rows.offsets is None else rows.offsets
    return np.split(rows.values, offsets[1:-1])


def noise_of_bfloat16(chosen: FusedConfig) -> Measured | None:
    """What the plain model's answers to the fixed texts lose where it computes in bfloat16 and not in float32, both by
    plain torch; None where there is no memory for it. Long texts, whose attention takes most there, are left out."""
    texts = gate_texts.fixed(chosen.folder)
    try:
        rounded, exact = (_plain_answers(chosen, dtype, texts) for dtype in (torch.bfloat16, torch.float32))
    except (torch.OutOfMemoryError, DeviceTrouble):
        return None
    finally:
        free_memory()
    return Measure(chosen.folder.activation, texts.num_ranked)(rounded, exact)


def _plain_answers(chosen: FusedConfig, dtype: torch.dtype, texts: GateTexts) -> Answers:
    """Raises torch.OutOfMemoryError, and DeviceTrouble where there is no memory."""
    free_memory()  # of the model before
    from engine.fused.weights import open_model  # imports transformers

    chosen = dataclasses.replace(chosen, dtype=dtype)
    folder = chosen.folder
    source, _ = open_model(chosen)
    plain = Model(
        name="",
        reason="to measure the noise of bfloat16",
        chosen=chosen,
        spec=source.spec,
        weights=source.weights(),
        modules=load_modules_of(folder, chosen.device),
        ops=ReferenceOps(),
        max_num_seqs=_NUM_SEQS_OF_PLAIN,
        num_threads=torch.get_num_threads(),
    )
    return GateAnswers(plain, texts)(range(len(texts.sequences)))
