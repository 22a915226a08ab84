"""Measures what quantization costs a model on a device: loads it as for serving and returns what the gate found.

Serves nothing, and neither reads nor writes the cache of quantized models.
"""

import dataclasses
import gc
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.fused import loading
from engine.fused.quantization import gate, quantizing
from engine.fused.quantization.gate import Outcome
from engine.fused.quantization.gate_answers import noise_of_bfloat16
from engine.fused.quantization.measures import Measured
from engine.fused.start import Phases
from engine.messages import LoadOptions

_REASON = "for verification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result for one model on one device."""

    outcome: Outcome
    scheme: str
    # What bfloat16 costs beside float32: an error of quantization that is not larger can't be told from rounding. None
    # where there was no memory for it.
    noise_floor: Measured | None
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
        noise_floor=outcome.noise or noise_of_bfloat16(chosen),
        dtype=str(chosen.dtype).removeprefix("torch."),
        gpu=None if chosen.capability is None else torch.cuda.get_device_name(chosen.device),
        with_auto=quantizing.decide("auto", capability=chosen.capability, num_linear_parameters=size)[1],
    )
