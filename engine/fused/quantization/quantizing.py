"""Quantizes a model that has been read, as far as was asked for, its GPU can, and the gate lets it."""

import dataclasses
from collections.abc import Callable

from engine.fused.assembly import Model
from engine.fused.model.linear import PlainLinear
from engine.fused.quantization import gate, gate_texts, precision
from engine.fused.quantization.fidelity import Rows
from engine.fused.quantization.measuring import Measuring
from engine.fused.quantization.scheme import Scheme
from engine.fused.quantization.schemes import scheme_of
from engine.fused.quantization.switch import LinearSwitch
from engine.selftest.sample_ids import Sequences
from engine.types import ModelError


def quantized(
    model: Model, wish: str, *, plain: Callable[[str], PlainLinear], is_gated: bool
) -> tuple[Model, gate.Outcome | None]:
    """The same model, its linear layers exchanged where that was decided, with notes of why; and what the gate found.

    wish: "none", "auto" or "fp8"; plain: reads a linear layer anew; is_gated: layers that cost too much go back.
    Raises ModelError where what is asked for can't be had.
    """
    decided = precision.decide(
        wish, capability=model.chosen.capability, num_linear_parameters=model.spec.num_linear_parameters
    )
    if decided.scheme is None:
        return _noted(model, decided.reason), None
    scheme = scheme_of(decided.scheme)
    names = precision.eligible(model.spec, multiple=scheme.multiple)
    if not names:
        why = f"no linear layer's sizes are multiples of {scheme.multiple}, as {scheme.name} needs them"
        if wish != "auto":
            raise ModelError(f"--quantization {wish}: {why}")
        return _noted(model, f"not quantized: {why}"), None
    outcome = _through_gate(model, scheme, names, plain=plain, is_gated=is_gated)
    noted = _noted(model, decided.reason, outcome.note)
    return (dataclasses.replace(noted, quantization="fp8") if outcome.quantized else noted), outcome


def _through_gate(
    model: Model, scheme: Scheme, names: tuple[str, ...], *, plain: Callable[[str], PlainLinear], is_gated: bool
) -> gate.Outcome:
    """The layers are left as the gate wants them."""
    switch = LinearSwitch(model.weights.linears, scheme, plain=plain)
    measuring = Measuring(model)

    def compute(sequences: Sequences, quantized: frozenset[str]) -> Rows:
        switch.set(quantized)
        return measuring.rows(sequences)

    sequences = gate_texts.sequences(model.chosen.folder)
    outcome = gate.check(compute, names, sequences, scheme=scheme.name, is_enforced=is_gated)
    switch.set(outcome.quantized)
    return outcome


def _noted(model: Model, *notes: str) -> Model:
    return dataclasses.replace(model, notes=(*model.notes, *notes))
