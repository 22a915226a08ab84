"""Makes an engine that is ready from options: weights, precision, then the first batches as a check.

The first batches are the largest that fits into memory, a check of the kernels, and single queries. The check compares
the engine's rows with those of the same weights by the ops' plain torch reference, which computes each sequence alone.
A kernel that ignores a window gives the same wrong row alone and together, so comparing these two does not show it.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.fused import offer, packing
from engine.fused.assembly import Model, assemble
from engine.fused.cuda_device import free_memory, on_recorder
from engine.fused.engine import FusedEngine
from engine.fused.model.forwards import Weights
from engine.fused.model.linear import NoProduct, probe_products, products_of
from engine.fused.model.ops import Ops
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import Spec
from engine.fused.offer import FusedConfig, NotForFused, Options
from engine.fused.outputs import load_modules_of
from engine.fused.quantization.cache import QuantizedModel, cache_for
from engine.fused.quantization.gate import Outcome
from engine.fused.quantization.gate_texts import takes_pairs
from engine.fused.quantization.quantizing import quantized
from engine.machine.failures import engine_error, one_line
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder
from engine.registry import FUSED
from engine.selftest import sample_ids, selfcheck
from engine.selftest.comparison import agreement, batch_of, comparable, is_near, joined, not_finite
from engine.selftest.sample_ids import Sequences, trial
from engine.types import (
    MAX_SENT,
    Batch,
    DeviceTrouble,
    EngineError,
    EngineErrorKind,
    OutputKind,
    Results,
    RowsDiffer,
    compute,
    main_output,
)
from wire.files import check_owner

logger = logging.getLogger("embedline.engine")

_MANY = 1024  # short texts of a batch whose sparse rows are computed before any request's
_MAX_QUERY = 512  # tokens of the longest lone query whose graph is recorded before it comes

_KERNEL_FOLDER = "triton"
_KERNEL_VARIABLE = "TRITON_CACHE_DIR"
_KERNEL_SETTINGS = (_KERNEL_VARIABLE, "TRITON_HOME")  # either one is the user's word

Phase = Callable[[str], contextlib.AbstractContextManager[None]]  # what times a part of loading, by its name


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading."""

    engine: FusedEngine
    model: Model  # that it computes
    outcome: Outcome | None  # of the gate; None where nothing was to be quantized


def load(phase: Phase, *, name: str, reason: str, options: LoadOptions) -> Loaded:
    """See engine.fused.start.load."""
    chosen = offer.choose(options)
    if chosen.capability is not None:
        torch.cuda.set_device(chosen.device)  # of this thread, before anything opens the first GPU
        if chosen.memory_share < 1.0:
            torch.cuda.set_per_process_memory_fraction(chosen.memory_share, chosen.device)
    if options.cache_dir and chosen.capability is not None:
        keep_kernels(Path(options.cache_dir), os.environ)
    try:
        with _told_of_the_device(chosen, "the model was loaded"):
            return _Loading(chosen, phase, name=name, reason=reason, options=options).load()
    finally:
        on_recorder(int)  # a load that failed has its memory freed, which can't be done while graphs are recorded


@contextlib.contextmanager
def _told_of_the_device(chosen: FusedConfig, doing: str) -> Iterator[None]:
    """A context that raises DeviceTrouble where memory runs out or the GPU is lost. doing: what was done then."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceTrouble(
            f"{chosen.device} ran out of memory while {doing}: free some of it there, or serve the model on a larger "
            f"GPU"
        ) from error
    except torch.AcceleratorError as error:
        raise DeviceTrouble(f"{chosen.device} was lost while {doing}: {one_line(error)}") from error


class _Loading:
    """Loads one model."""

    def __init__(self, chosen: FusedConfig, phase: Phase, *, name: str, reason: str, options: LoadOptions) -> None:
        self._chosen = chosen
        self._phase = phase
        self._name = name
        self._reason = reason
        self._options = options
        limits = options.batch_limits(chosen.folder.max_seqlen)
        self._max_num_tokens, self._max_num_seqs = limits["max_num_tokens"], limits["max_num_seqs"]
        self._cache = cache_for(chosen, options)

    def load(self) -> Loaded:
        chosen = self._chosen
        kept = self._kept()
        if isinstance(kept, QuantizedModel):
            model = dataclasses.replace(self._model(kept.spec, kept.weights, kept.notes), quantization="fp8")
            outcome: Outcome | None = kept.outcome
        else:
            model, outcome = self._from_folder(rejected=kept)
        tried = trial(chosen.folder, kind=chosen.device.type)
        model = dataclasses.replace(model, notes=(*model.notes, *tried.notes))
        with self._phase("probe"):
            engine = engine_that_fits(model, self._max_num_tokens)
        with self._phase("check"):
            selfcheck.check(engine, chosen.folder, dtype=engine.info.dtype)
            compare_with_reference(engine, model, tried.sequences)
            share_prefixes(engine, model, tried.sequences)
        with self._phase("graphs"):
            record_queries(engine, model)
        return Loaded(engine, model, outcome)

    def _kept(self) -> QuantizedModel | Outcome | None:
        """See QuantizedCache.find. None, too, where `auto` is to find that the GPU has no product for it."""
        with self._phase("weights"):
            kept = None if self._cache is None else self._cache.find()
        if isinstance(kept, QuantizedModel):
            with self._phase("precision"):
                try:
                    self._probe_products(kept.spec, kept.outcome.quantized)
                except NoProduct:
                    if self._options.quantization != "auto":
                        raise
                    return None
        return kept

    def _from_folder(self, *, rejected: Outcome | None) -> tuple[Model, Outcome | None]:
        """rejected: what the gate found at an earlier start that left nothing quantized."""
        with self._phase("import"):
            from engine.fused.weights import open_model  # imports transformers
        with self._phase("weights"):
            source, notes = open_model(self._chosen)
            weights = source.weights()
        model = self._model(source.spec, weights, notes)
        if rejected is not None:
            return dataclasses.replace(model, notes=(*model.notes, f"{rejected.note}, at an earlier start")), rejected
        with self._phase("precision"):
            requested, is_gated = self._options.quantization, self._options.own_of(FUSED, Options).is_gated
            model, outcome = quantized(
                model, requested, plain=source.linear, is_gated=is_gated, probe=self._probe_products
            )
        if outcome is not None and self._cache is not None:
            with self._phase("keeping"):
                self._cache.put(QuantizedModel(model.spec, model.weights, outcome, model.notes))
        return model, outcome

    def _probe_products(self, spec: Spec, names: Sequence[str]) -> None:
        """Raises NoProduct where the GPU can't compute one of them. A CPU can."""
        chosen = self._chosen
        if chosen.capability is None:
            return
        row_counts = packing.row_counts(self._max_num_tokens, self._max_num_seqs)
        found = products_of(spec, names)
        with _told_of_the_device(chosen, "FP8 products were tried (--quantization none tries none)"):
            probe_products(found, row_counts=row_counts, device=chosen.device, dtype=chosen.dtype)

    def _model(self, spec: Spec, weights: Weights, notes: tuple[str, ...]) -> Model:
        check_hidden_tokens(self._chosen.folder, spec)
        with self._phase("weights"):
            modules = load_modules_of(self._chosen.folder, self._chosen.device)
        return Model(
            name=self._name,
            reason=self._reason,
            chosen=self._chosen,
            spec=spec,
            weights=weights,
            modules=modules,
            ops=_ops(self._chosen),
            max_num_seqs=self._max_num_seqs,
            num_threads=self._options.num_threads,
            notes=notes,
        )


def check_hidden_tokens(folder: ModelFolder, spec: Spec) -> None:
    """Raises ModelError where a token that fills a query up could be too far from all tokens that it may see."""
    window = min((layer.window for layer in spec.layers if layer.window is not None), default=None)
    late = folder.late
    if not folder.hides_tokens or window is None or late is None:
        return
    filled_up = late.expansion_length or late.query_length or folder.max_seqlen
    if filled_up > window:
        raise NotForFused(
            f"queries are filled up to {filled_up} tokens that the others do not see, and a layer's tokens see "
            f"only {window}: which of them the last ones would see depends on the library"
        )


def _ops(chosen: FusedConfig) -> Ops:
    if chosen.capability is None:
        return ReferenceOps()
    from engine.fused.kernels import TritonOps  # Triton need not be there to check a model on a CPU

    return TritonOps()


def keep_kernels(cache_dir: Path, environment: MutableMapping[str, str]) -> None:
    """Have Triton keep the kernels that it compiles in a folder of this one. Call it before the first is compiled.

    Triton loads what it finds there as programs, so a folder that others could have written to is not used: kernels
    are then kept where Triton keeps them by itself.
    """
    if any(name in environment for name in _KERNEL_SETTINGS):
        return
    folder = cache_dir / _KERNEL_FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
    except OSError as error:
        logger.warning("compiled kernels are not cached in %s: %s", folder, one_line(error))
        return
    environment[_KERNEL_VARIABLE] = str(folder)


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
        free_memory()
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
    return _error_of(engine, batch_of(sample_ids.largest_batch(model.chosen.folder, engine.limits))) or engine


def _error_of(engine: FusedEngine, largest: Batch) -> EngineError | None:
    """Why an engine can't compute a batch of this size, whatever it is asked for."""
    # Run twice, so that its graph is recorded and keeps its memory. Shapes without a graph need as much in addition.
    recorded = engine.info.outputs & packing.ROWS_OF_SEQUENCES
    for outputs in (*([recorded] * 2 if recorded else ()), engine.info.outputs):
        results = compute(engine, dataclasses.replace(largest, outputs=outputs))
        on_recorder(int)  # waits until the graph is recorded
        if isinstance(results, EngineError):
            return results
    return None


def compare_with_reference(engine: FusedEngine, model: Model, sequences: Sequences) -> None:
    """Raises ModelError if the engine fails, or its rows are not finite or not the reference's.

    A reference that finds no memory beside the engine is logged, and the check left out.
    """
    on_recorder(int)  # nothing that waits for the whole device, as a new engine may, can be done beside a recording
    expected = None if isinstance(model.ops, ReferenceOps) else _expected(model, sequences)
    free_memory()
    if expected is None:
        return
    dtype = engine.info.dtype
    found = selfcheck.results_of(engine, sequences, OutputKind(sum(expected)))
    main = main_output(engine.info.outputs)  # whose last layer computes less where nothing else is asked for
    alone = selfcheck.results_of(engine, sequences, main)
    for kind, rows in (*found.items(), *alone.items()):
        if not np.isfinite(rows.values).all():
            raise not_finite("fused", dtype)
        near = agreement(*comparable(kind, rows, expected[kind]), dtype=dtype)
        if not is_near(near, dtype=dtype):
            raise RowsDiffer(
                f"the fused engine's kernels do not give the {kind.name} rows of plain torch: {near.in_words}; "
                "--engine transformers may serve the model",
                max(map(len, sequences)),
            )


def _expected(model: Model, sequences: Sequences) -> Results | None:
    """Hidden states, and the model's outputs made of them; None if there is no memory for them."""
    plain = dataclasses.replace(model, ops=ReferenceOps(), max_num_seqs=1)
    parts: list[Results] = []
    try:
        reference = assemble(plain, max_num_tokens=max(map(len, sequences)), records=False)
        for sequence in sequences:
            found = selfcheck.answered(reference, [sequence], reference.info.outputs | OutputKind.TOKENS)
            if isinstance(found, EngineError):
                break
            parts.append(found)
        else:
            return joined(parts)
    except torch.OutOfMemoryError as error:
        found = engine_error(error)
    assert isinstance(found, EngineError)
    if found.kind is not EngineErrorKind.OUT_OF_MEMORY:
        raise selfcheck.cannot_run("fused", found)
    logger.warning("the self-test of the fused engine's kernels is left out: there is no memory for its reference")
    return None


def share_prefixes(engine: FusedEngine, model: Model, sequences: Sequences) -> None:
    """Have the engine compute once what sequences begin with alike, if its rows are then the same.

    Nothing is tried where that is never right, since the limits of FP8 are wide: tokens that see later ones. Nor where
    a model scores words for sparse rows, whose kernels go by tiles of all tokens.
    """
    alone = engine.info
    if not model.spec.is_causal or OutputKind.SPARSE in alone.outputs:
        return
    note = "what texts of a request begin with alike is computed once"
    engine.info = dataclasses.replace(alone, shares_prefixes=True, notes=(*alone.notes, note))
    outputs = alone.outputs | OutputKind.TOKENS
    folder, dtype = model.chosen.folder, alone.dtype
    tried = [one for one in sequences if len(one) <= sample_ids.LONGEST]
    differences = (selfcheck.difference_by_sharing(engine, folder, tried, kind, dtype=dtype) for kind in outputs)
    why_not = next(filter(None, differences), "") or _lack_for_sharing(engine, model)
    if why_not:
        note = f"what texts of a request begin with alike is computed for each: {why_not}"
        engine.info = dataclasses.replace(alone, notes=(*alone.notes, note))
        free_memory()


def _lack_for_sharing(engine: FusedEngine, model: Model) -> str:
    """Why the engine can't compute as many tokens as the largest batch may have that shares; "" = it can."""
    if model.chosen.capability is None:
        return ""
    limits, times = engine.limits, MAX_SENT
    seqlen = max(2, limits.max_seqlen - times + 1)  # each time with one token of its own
    num_times = max(1, min(limits.max_num_tokens // limits.max_seqlen, limits.max_num_seqs // times))
    sequences = sample_ids.arbitrary(model.chosen.folder, [seqlen] * num_times)
    largest = batch_of([one for one in sequences for _ in range(times)])
    shared = np.tile(np.array([0] + [seqlen - 1] * (times - 1), np.int32), num_times)
    error = _error_of(engine, dataclasses.replace(largest, shared=shared))
    if error is not None and error.kind is EngineErrorKind.FATAL:
        raise selfcheck.cannot_run("fused", error)
    return str(error or "")


def record_queries(engine: FusedEngine, model: Model) -> None:
    """Compile the kernels of single queries, and record their graphs, so that no request has to wait for that.

    Pairs have token types. Sparse rows of many texts have kernels that those of one do not need.
    """
    folder = model.chosen.folder
    if model.chosen.capability is None:
        return
    has_types = len(model.weights.tensors.get("types", ())) > 1 and takes_pairs(folder)
    num_times = 2 if engine.info.outputs & packing.ROWS_OF_SEQUENCES else 1  # a shape is recorded when it comes again
    buckets = [size for size in engine.limits.token_buckets if size <= min(_MAX_QUERY, engine.limits.max_seqlen)]
    # The size of tiles can differ between the shortest and the longest query of a bucket.
    for num_tokens in (*buckets, *(size + 1 for size in buckets[:-1])):
        for _ in range(num_times):
            batch = batch_of(
                sample_ids.arbitrary(folder, [num_tokens]), main_output(engine.info.outputs), model=engine.info.name
            )
            types = np.zeros(batch.num_tokens, np.int32) if has_types else None
            compute(engine, dataclasses.replace(batch, token_type_ids=types))
        on_recorder(int)  # the next one begins when this one is done
    if model.spec.head is None and OutputKind.SPARSE in engine.info.outputs:
        limits = engine.limits
        seqlens = [max(1, limits.max_num_tokens // limits.max_num_seqs)] * min(limits.max_num_seqs, _MANY)
        selfcheck.answered(engine, sample_ids.arbitrary(folder, seqlens), OutputKind.SPARSE)
