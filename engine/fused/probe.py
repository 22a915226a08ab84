"""The first batches of a loaded model: finds the largest that fits in memory, records graphs of single queries."""

import dataclasses
import gc

import torch

from engine.fused.assembly import Model, assemble
from engine.fused.choices import Choices
from engine.fused.engine import FusedEngine
from engine.fused.runner.graphs import on_recorder
from engine.fused.runner.packing import ALL_OUTPUTS
from engine.machine.failures import engine_error
from engine.selftest import sample_ids, selfcheck
from engine.types import DeviceTrouble, EngineError, EngineErrorKind, OutputKind

_MAX_QUERY = 512  # tokens of the longest lone query whose graph is recorded before it comes


def engine_that_fits(tried: Model, asked: int) -> FusedEngine:
    """An engine for batches of this many tokens, or of as many as fit into memory."""
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
        gc.collect()  # devices and their graphs know each other
        torch.cuda.empty_cache()
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
