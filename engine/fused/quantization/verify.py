"""Measures what quantization costs a model on a device: loads it as for serving and returns what the gate found.

Serves nothing, and neither reads nor writes the cache of quantized models.
"""

import dataclasses
import gc
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.fused import loading, weights
from engine.fused.assembly import Model
from engine.fused.model.reference import ReferenceOps
from engine.fused.offer import FusedConfig
from engine.fused.quantization import gate, gate_texts, quantizing
from engine.fused.quantization.gate import Outcome
from engine.fused.quantization.quantizing import GateRows
from engine.fused.start import Phases
from engine.messages import LoadOptions
from engine.rows_torch import load_modules
from engine.selftest.fidelity import Fidelity, fidelity
from engine.types import DeviceTrouble

_REASON = "for verification"
_NUM_SEQS = 64  # of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result for one model on one device."""

    outcome: Outcome
    scheme: str
    limits: dict[str, float]  # what the gate asks for, by the name of what is measured
    # Plain bfloat16 rows of the gate's fixed texts against float32 ones, both by plain torch: an error of quantization
    # that is not larger can't be told from rounding. None where there was no memory for it.
    noise_floor: Fidelity | None
    dtype: str  # of what stays plain, and of what all was held against
    gpu: str | None  # as its driver calls it; None = a CPU
    with_auto: str  # a line: what --quantization auto makes of this model on this device


def verify(name: str, options: LoadOptions) -> Verified:
    """What quantizing does to the rows. Raises ModelError where the model can't be loaded with these options, whose
    quantization is not "none"."""
    if options.cache_dir:
        loading.keep_kernels(Path(options.cache_dir), os.environ)
    loaded = loading.load(Phases(), name=name, reason=_REASON, options=dataclasses.replace(options, cache_dir=None))
    loaded.engine.close()
    chosen, outcome, size = loaded.model.chosen, loaded.outcome, loaded.model.spec.num_linear_parameters
    assert outcome is not None
    del loaded  # its memory is for the plain models
    gc.collect()
    torch.cuda.empty_cache()  # of a process that uses none, this does nothing
    return Verified(
        outcome=outcome,
        scheme=gate.SCHEME,
        limits={"median": gate.MIN_MEDIAN, "p1": gate.MIN_P1, "overlap": gate.MIN_OVERLAP},
        noise_floor=_noise_floor(chosen),
        dtype=str(chosen.dtype).removeprefix("torch."),
        gpu=None if chosen.capability is None else torch.cuda.get_device_name(chosen.device),
        with_auto=quantizing.decide("auto", capability=chosen.capability, num_linear_parameters=size)[1],
    )


def _noise_floor(chosen: FusedConfig) -> Fidelity | None:
    try:
        rounded, exact = (_plain_rows(chosen, dtype) for dtype in (torch.bfloat16, torch.float32))
    except (torch.OutOfMemoryError, DeviceTrouble):
        return None
    return fidelity(rounded, exact)


def _plain_rows(chosen: FusedConfig, dtype: torch.dtype) -> gate.Rows:
    """The rows of the plain model. Raises torch.OutOfMemoryError, and DeviceTrouble where there is no memory."""
    chosen = dataclasses.replace(chosen, dtype=dtype)
    folder = chosen.folder
    source, _ = weights.open_model(chosen)
    plain = Model(
        name="",
        reason=_REASON,
        chosen=chosen,
        spec=source.spec,
        weights=source.weights(),
        modules=load_modules(folder.path, folder.steps, device=chosen.device),
        ops=ReferenceOps(),
        max_num_seqs=_NUM_SEQS,
        num_threads=torch.get_num_threads(),
    )
    return GateRows(plain).rows(gate_texts.sequences(folder))
