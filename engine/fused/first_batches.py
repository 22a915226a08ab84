"""The first batches of a loaded model: the largest that fits into memory, a check of its kernels, single queries.

The check compares the engine's rows with those of the same weights by the ops' plain torch reference, which computes
each sequence alone. A kernel that ignores a window gives the same wrong row alone and together, so comparing these two
does not show it.
"""

import dataclasses
import gc
import logging

import numpy as np
import torch
from numpy.typing import NDArray

from engine.fused.assembly import Model, assemble
from engine.fused.choices import Choices
from engine.fused.engine import FusedEngine
from engine.fused.model.reference import ReferenceOps
from engine.fused.runner.graphs import on_recorder
from engine.fused.runner.packing import ALL_OUTPUTS
from engine.machine.failures import engine_error
from engine.selftest import sample_ids, selfcheck
from engine.selftest.comparison import agreement, is_near, not_finite
from engine.selftest.sample_ids import Sequences
from engine.types import DeviceTrouble, Engine, EngineError, EngineErrorKind, OutputKind, RowsDiffer

_MAX_QUERY = 512  # tokens of the longest lone query whose graph is recorded before it comes

logger = logging.getLogger("embedline.engine")


def engine_that_fits(tried: Model, asked: int) -> FusedEngine:
    """An engine for batches of this many tokens, or of as many as fit into memory. Raises ModelError."""
    model, max_num_tokens, least = tried, asked, tried.chosen.folder.max_seqlen
    while True:
        found = _probed(model, max_num_tokens)
        if isinstance(found, FusedEngine):
            return found
        if found.kind is not EngineErrorKind.OUT_OF_MEMORY:
            raise selfcheck.cannot_run("fused", found)
        if max_num_tokens <= least:
            raise DeviceTrouble(
                f"one sequence of {least} tokens runs out of memory on {model.chosen.device}: free some of it there, "
                f"or lower --max-input-length"
            )
        _free_memory()
        max_num_tokens = max(max_num_tokens // 2, least)
        note = f"batches of at most {max_num_tokens} tokens: {asked} run out of memory"
        model = dataclasses.replace(tried, notes=(note, *tried.notes))


def _probed(model: Model, max_num_tokens: int) -> FusedEngine | EngineError:
    """An engine that has computed a batch of this size, or why there is none."""
    try:
        engine = assemble(model, max_num_tokens=max_num_tokens)
    except torch.OutOfMemoryError as error:
        return engine_error(error)
    if model.chosen.capability is None:  # what a CPU lacks in memory it lends from the disk, and takes a while
        return engine
    largest = sample_ids.largest_batch(model.chosen.folder, engine.limits)
    # Run twice, so that its graph is recorded and keeps its memory. Shapes without a graph need as much in addition.
    for outputs in (OutputKind.POOLED, OutputKind.POOLED, ALL_OUTPUTS):
        results = selfcheck.answered(engine, largest, outputs)
        on_recorder(int)  # waits until the graph is recorded
        if isinstance(results, EngineError):
            return results
    return engine


def _free_memory() -> None:
    gc.collect()  # devices and their graphs know each other
    on_recorder(int)  # while a graph is recorded, torch's allocator answers the next line with an internal assert
    torch.cuda.empty_cache()  # of a process that uses none, this does nothing


def compare_with_reference(engine: FusedEngine, model: Model, sequences: Sequences) -> None:
    """Raises ModelError if the engine fails, or its rows are not finite or not the reference's.

    A reference that finds no memory beside the engine is logged, and the check left out.
    """
    on_recorder(int)  # nothing that waits for the whole device, as a new engine may, can be done beside a recording
    expected = None if isinstance(model.ops, ReferenceOps) else _expected(model, sequences)
    _free_memory()
    if expected is None:
        return
    found = _token_rows(engine, sequences)
    if isinstance(found, EngineError):
        raise selfcheck.cannot_run("fused", found)
    dtype = engine.info.dtype
    if not np.isfinite(found).all():
        raise not_finite("fused", dtype)
    near = agreement(found, expected, dtype=dtype)
    if not is_near(near, dtype=dtype):
        raise RowsDiffer(
            f"the fused engine's kernels do not give the rows of plain torch: {near.in_words}; --engine transformers "
            "may serve the model",
            max(map(len, sequences)),
        )


def _expected(model: Model, sequences: Sequences) -> NDArray[np.float32] | None:
    """Token rows [T, D]; None if there is no memory for them."""
    plain = dataclasses.replace(model, ops=ReferenceOps(), max_num_seqs=1)
    try:
        reference = assemble(plain, max_num_tokens=max(map(len, sequences)), records=False)
        found = _token_rows(reference, sequences)
    except torch.OutOfMemoryError as error:
        found = engine_error(error)
    if not isinstance(found, EngineError):
        return found
    if found.kind is not EngineErrorKind.OUT_OF_MEMORY:
        raise selfcheck.cannot_run("fused", found)
    logger.warning("the self-test of the fused engine's kernels is left out: there is no memory for its reference")
    return None


def _token_rows(engine: Engine, sequences: Sequences) -> NDArray[np.float32] | EngineError:
    """[T, D]."""
    rows = []
    for batch in selfcheck.batches(engine.limits, sequences):
        results = selfcheck.answered(engine, batch, OutputKind.TOKENS)
        if isinstance(results, EngineError):
            return results
        rows.append(results[OutputKind.TOKENS].values)
    return np.concatenate(rows)


def record_queries(engine: FusedEngine, chosen: Choices) -> None:
    """Record the graphs of single queries, so that no request has to wait for that."""
    if chosen.capability is None:
        return
    buckets = [size for size in engine.limits.token_buckets if size <= min(_MAX_QUERY, engine.limits.max_seqlen)]
    # The size of tiles can differ between the shortest and the longest query of a bucket.
    for num_tokens in (*buckets, *(size + 1 for size in buckets[:-1])):
        for _ in range(2):  # a shape is recorded when it comes again
            selfcheck.answered(engine, sample_ids.arbitrary(chosen.folder, [num_tokens]))
        on_recorder(int)  # the next one begins when this one is done
