"""From options to an engine that serves: weights, precision, and what is tried before anybody's text is. See each."""

import dataclasses
import gc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.failures import engine_error, one_line
from engine.fused import choices, kernel_cache
from engine.fused.assembly import Model, assemble, max_graph_tokens
from engine.fused.attention import choice
from engine.fused.attention.choice import AttentionChoice, candidates_for
from engine.fused.attention.timing import GpuTiming
from engine.fused.checkpoint.keeping import Keeping
from engine.fused.checkpoint.store import Kept
from engine.fused.choices import Choices
from engine.fused.engine import FusedEngine, Phases
from engine.fused.model.blocks import Weights
from engine.fused.model.ops import Ops
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import Spec
from engine.fused.quantization.gate import Outcome
from engine.fused.quantization.quantizing import quantized
from engine.fused.runner.shape import ALL_OUTPUTS
from engine.rows.head_torch import load_head
from engine.selftest import sample_ids, selfcheck
from engine.types import MAX_NUM_SEQS, DeviceTrouble, EngineError, EngineErrorKind, OutputKind

_MAX_NUM_TOKENS = 16_384  # of a batch, where nobody says otherwise
_MAX_QUERY = 512  # tokens of the longest lone query whose graph is recorded before it comes


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading comes to."""

    engine: FusedEngine
    model: Model  # that it computes
    outcome: Outcome | None  # of the gate; None where nothing was to be quantized


def load(phases: Phases, *, name: str, reason: str, options: dict[str, Any]) -> Loaded:
    """See engine.fused.engine.load."""
    chosen = choices.choose(options)
    if chosen.capability is not None:
        torch.cuda.set_device(chosen.device)  # of this thread, before anything opens the first GPU
        if chosen.memory_share < 1.0:
            torch.cuda.set_per_process_memory_fraction(chosen.memory_share, chosen.device)
    cache_dir = options.get("cache_dir")
    if cache_dir and chosen.capability is not None:
        kernel_cache.use(Path(cache_dir), os.environ)
    try:
        return _Loading(chosen, phases, name=name, reason=reason, options=options).load()
    except torch.OutOfMemoryError as error:
        raise DeviceTrouble(
            f"{chosen.device} runs out of memory while the model is loaded: free some of it there, or serve the model "
            f"on a larger GPU"
        ) from error


class _Loading:
    """One model's way to an engine."""

    def __init__(self, chosen: Choices, phases: Phases, *, name: str, reason: str, options: dict[str, Any]) -> None:
        self._chosen = chosen
        self._phases = phases
        self._name = name
        self._reason = reason
        self._options = options
        self._keeping = Keeping(chosen, options)

    def load(self) -> Loaded:
        chosen = self._chosen
        with self._phases("weights"):
            kept = self._keeping.find()
        model, outcome = self._from_folder() if kept is None else self._from_cache(kept)
        with self._phases("probe"):
            asked = self._options["max_num_tokens"] or _MAX_NUM_TOKENS
            engine = _fitting(model, max(asked, chosen.folder.max_seqlen))
        with self._phases("check"):
            selfcheck.check(engine, chosen.folder, dtype=engine.info.dtype)
        with self._phases("graphs"):
            _record_queries(engine, chosen)
        return Loaded(engine, model, outcome)

    def _from_cache(self, kept: Kept) -> tuple[Model, Outcome]:
        model = self._model(kept.spec, kept.weights, kept.notes)
        return dataclasses.replace(model, quantization="fp8"), kept.outcome

    def _from_folder(self) -> tuple[Model, Outcome | None]:
        with self._phases("import"):
            from engine.fused.checkpoint import original  # imports transformers
        with self._phases("weights"):
            found = original.find(self._chosen)
            weights = found.source.weights()
        model = self._model(found.source.spec, weights, found.notes)
        given_up = self._keeping.given_up()
        if given_up is not None:
            return dataclasses.replace(model, notes=(*model.notes, f"{given_up.note}, at an earlier start")), given_up
        with self._phases("precision"):
            wish, is_gated = self._options.get("quantization", "none"), self._options.get("is_gated", True)
            model, outcome = quantized(model, wish, plain=found.source.linear, is_gated=is_gated)
        if outcome is not None:
            with self._phases("keeping"):
                self._keeping.put(Kept(model.spec, model.weights, outcome, model.notes))
        return model, outcome

    def _model(self, spec: Spec, weights: Weights, notes: tuple[str, ...]) -> Model:
        ops, folder = _ops(self._chosen), self._chosen.folder
        with self._phases("weights"):
            head = load_head(folder.path, folder.steps, device=self._chosen.device)
        with self._phases("attention"):
            may_choose = self._options.get("attention", "auto") == "auto"
            attention = _attention(self._chosen, spec, ops, weights) if may_choose else None
        return Model(
            name=self._name,
            reason=self._reason,
            chosen=self._chosen,
            spec=spec,
            weights=weights,
            head=head,
            ops=ops,
            attention=attention,
            max_num_seqs=self._options["max_num_seqs"] or MAX_NUM_SEQS,
            num_threads=self._options.get("num_threads") or 1,
            notes=notes,
        )


def _ops(chosen: Choices) -> Ops:
    if chosen.capability is None:
        return ReferenceOps()
    from engine.fused.kernels.ops import TritonOps  # Triton need not be there to check a model on a CPU

    return TritonOps()


def _attention(chosen: Choices, spec: Spec, ops: Ops, weights: Weights) -> AttentionChoice | None:
    """None on a CPU, where there is nothing to choose."""
    if chosen.capability is None:
        return None
    has_bias = "relative_bias" in weights.tensors
    candidates = candidates_for(spec, chosen.dtype, chosen.capability, has_bias=has_bias)
    is_recorded = max_graph_tokens(spec) >= _MAX_NUM_TOKENS
    timing = GpuTiming(spec, ops, chosen.dtype, chosen.device, is_recorded=is_recorded)
    try:
        return choice.choose(candidates, timing, max_seqlen=chosen.folder.max_seqlen)
    except torch.AcceleratorError as error:
        raise DeviceTrouble(
            f"{chosen.device} was lost while ways to attend were measured; --attention tiles measures none "
            f"({one_line(error)})"
        ) from error


def _fitting(tried: Model, asked: int) -> FusedEngine:
    """An engine for batches of so many tokens, or of as many as there turns out to be memory for."""
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
    largest = _largest(engine, model.chosen)
    # Met twice, its graph is recorded and keeps its memory; what is never recorded needs as much beside it.
    for outputs in (OutputKind.POOLED, OutputKind.POOLED, ALL_OUTPUTS):
        results = selfcheck.answered(engine, largest, outputs)
        if isinstance(results, EngineError):
            return results
    return engine


def _largest(engine: FusedEngine, chosen: Choices) -> sample_ids.Sequences:
    """Sequences of the longest kind that come to a batch of the largest kind."""
    num_seqs, rest = divmod(engine.limits.max_num_tokens, engine.limits.max_seqlen)
    seqlens = [engine.limits.max_seqlen] * num_seqs + [rest] * (rest > 0)
    return sample_ids.arbitrary(chosen.folder, seqlens[: engine.limits.max_num_seqs])


def _record_queries(engine: FusedEngine, chosen: Choices) -> None:
    """The graphs of lone queries, which nobody is then the first to wait for."""
    if chosen.capability is None:
        return
    buckets = [size for size in engine.limits.token_buckets if size <= min(_MAX_QUERY, engine.limits.max_seqlen)]
    # The size of tiles can differ between the shortest and the longest query of a bucket.
    for num_tokens in (*buckets, *(size + 1 for size in buckets[:-1])):
        for _ in range(2):  # a shape is recorded when it comes again
            selfcheck.answered(engine, sample_ids.arbitrary(chosen.folder, [num_tokens]))
