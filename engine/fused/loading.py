"""From options to an engine that is ready: weights, precision, then the first batches as a check."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.fused import choices, first_batches
from engine.fused.assembly import Model
from engine.fused.choices import Choices
from engine.fused.engine import FusedEngine
from engine.fused.model.blocks import Weights
from engine.fused.model.linear import NoProduct, probe_products, products_of
from engine.fused.model.ops import Ops
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import Spec
from engine.fused.quantization.cache import QuantizedModel, cache_for
from engine.fused.quantization.gate import Outcome
from engine.fused.quantization.quantizing import quantized
from engine.fused.runner import packing
from engine.fused.runner.graphs import on_recorder
from engine.machine.failures import one_line
from engine.messages import LoadOptions
from engine.rows.with_torch import load_modules
from engine.selftest import selfcheck
from engine.selftest.sample_ids import trial
from engine.store.folder_rights import check_owner
from engine.types import MAX_NUM_SEQS, DeviceTrouble

_MAX_NUM_TOKENS = 16_384  # of a batch, by default

_KERNEL_FOLDER = "triton"
_KERNEL_VARIABLE = "TRITON_CACHE_DIR"
_KERNEL_SETTINGS = (_KERNEL_VARIABLE, "TRITON_HOME")  # either one is the user's word

logger = logging.getLogger("embedline.engine")

Phase = Callable[[str], contextlib.AbstractContextManager[None]]  # what times a part of loading, by its name


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading."""

    engine: FusedEngine
    model: Model  # that it computes
    outcome: Outcome | None  # of the gate; None where nothing was to be quantized


def load(phase: Phase, *, name: str, reason: str, options: LoadOptions) -> Loaded:
    """See engine.fused.start.load."""
    chosen = choices.choose(options)
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
        on_recorder(
            int
        )  # whoever takes up a load that failed frees memory, which can't be done while graphs are recorded


@contextlib.contextmanager
def _told_of_the_device(chosen: Choices, doing: str) -> Iterator[None]:
    """Raises DeviceTrouble where memory runs out or the GPU is lost. doing: what was done then."""
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

    def __init__(self, chosen: Choices, phase: Phase, *, name: str, reason: str, options: LoadOptions) -> None:
        self._chosen = chosen
        self._phase = phase
        self._name = name
        self._reason = reason
        self._options = options
        self._max_num_tokens = max(options.max_num_tokens or _MAX_NUM_TOKENS, chosen.folder.max_seqlen)
        self._max_num_seqs = options.max_num_seqs or MAX_NUM_SEQS
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
            engine = first_batches.engine_that_fits(model, self._max_num_tokens)
        with self._phase("check"):
            selfcheck.check(engine, chosen.folder, dtype=engine.info.dtype)
            first_batches.compare_with_reference(engine, model, tried.sequences)
        with self._phase("graphs"):
            first_batches.record_queries(engine, chosen)
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
            from engine.fused.checkpoint import from_folder  # imports transformers
        with self._phase("weights"):
            found = from_folder.find(self._chosen)
            weights = found.source.weights()
        model = self._model(found.source.spec, weights, found.notes)
        if rejected is not None:
            return dataclasses.replace(model, notes=(*model.notes, f"{rejected.note}, at an earlier start")), rejected
        with self._phase("precision"):
            requested, is_gated = self._options.quantization, self._options.is_gated
            plain, try_products = found.source.linear, self._probe_products
            model, outcome = quantized(model, requested, plain=plain, is_gated=is_gated, probe=try_products)
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
        ops, folder = _ops(self._chosen), self._chosen.folder
        with self._phase("weights"):
            modules = load_modules(folder.path, folder.steps, device=self._chosen.device)
        return Model(
            name=self._name,
            reason=self._reason,
            chosen=self._chosen,
            spec=spec,
            weights=weights,
            modules=modules,
            ops=ops,
            max_num_seqs=self._max_num_seqs,
            num_threads=self._options.num_threads,
            notes=notes,
        )


def _ops(chosen: Choices) -> Ops:
    if chosen.capability is None:
        return ReferenceOps()
    from engine.fused.kernels.ops import TritonOps  # Triton need not be there to check a model on a CPU

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
