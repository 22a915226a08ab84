"""Measures what quantization costs a model on a device: loads it as for serving and returns what the gate found.

Serves nothing, and neither reads nor writes the cache of quantized models.
"""

import contextlib
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.fused import loading
from engine.fused.choices import Choices
from engine.fused.quantization import gate, gate_texts, quantizing
from engine.fused.quantization.gate import Outcome
from engine.messages import LoadOptions

_REASON = "for verification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result for one model on one device."""

    outcome: Outcome
    scheme: str
    num_tokens: int  # of the gate's texts
    min_median: float  # what the gate asks of cosines
    min_p1: float
    dtype: str  # of what stays plain, and of what all was held against
    gpu: str | None  # as its driver calls it; None = a CPU
    with_auto: str  # a line: what --quantization auto makes of this model on this device


def verify(name: str, options: LoadOptions) -> Verified:
    """Raises ModelError where the model can't be loaded with these options, whose quantization is not "none"."""
    if options.cache_dir:
        loading.keep_kernels(Path(options.cache_dir), os.environ)
    loaded = loading.load(_untimed, name=name, reason=_REASON, options=dataclasses.replace(options, cache_dir=None))
    loaded.engine.close()
    chosen, outcome = loaded.model.chosen, loaded.outcome
    assert outcome is not None
    return Verified(
        outcome=outcome,
        scheme=gate.SCHEME,
        num_tokens=sum(map(len, gate_texts.sequences(chosen.folder))),
        min_median=gate.MIN_MEDIAN,
        min_p1=gate.MIN_P1,
        dtype=str(chosen.dtype).removeprefix("torch."),
        gpu=_gpu(chosen),
        with_auto=quantizing.decide(
            "auto", capability=chosen.capability, num_linear_parameters=loaded.model.spec.num_linear_parameters
        ).reason,
    )


def _gpu(chosen: Choices) -> str | None:
    return None if chosen.capability is None else torch.cuda.get_device_name(chosen.device)


def _untimed(_: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()
