"""Quantizes a loaded model, as far as the flags ask for it, the GPU can compute it, and the gate accepts it."""

import dataclasses
from collections.abc import Callable, Iterable

import torch

from engine.fused.assembly import Model
from engine.fused.model.linear import Linear, PlainLinear
from engine.fused.quantization import gate, gate_texts, precision
from engine.fused.quantization.fidelity import Rows
from engine.fused.quantization.gate_rows import GateRows
from engine.fused.quantization.scheme import Scheme, scheme_of
from engine.selftest.sample_ids import Sequences
from engine.types import ModelError


def quantized(
    model: Model, requested: str, *, plain: Callable[[str], PlainLinear], is_gated: bool
) -> tuple[Model, gate.Outcome | None]:
    """The same model, its linear layers exchanged where that was decided, with notes of why; and what the gate found.

    requested: "none", "auto" or "fp8"; plain: reads a linear layer anew; is_gated: layers that cost too much go back.
    Raises ModelError if the GPU can't do what is asked for.
    """
    decided = precision.decide(
        requested, capability=model.chosen.capability, num_linear_parameters=model.spec.num_linear_parameters
    )
    if decided.scheme is None:
        return _noted(model, decided.reason), None
    scheme = scheme_of(decided.scheme)
    names = precision.eligible(model.spec, multiple=scheme.multiple)
    if not names:
        why = f"no linear layer's sizes are multiples of {scheme.multiple}, as {scheme.name} needs them"
        if requested != "auto":
            raise ModelError(f"--quantization {requested}: {why}")
        return _noted(model, f"not quantized: {why}"), None
    outcome = _through_gate(model, scheme, names, plain=plain, is_gated=is_gated)
    noted = _noted(model, decided.reason, outcome.note)
    return (dataclasses.replace(noted, quantization="fp8") if outcome.quantized else noted), outcome


def _through_gate(
    model: Model, scheme: Scheme, names: tuple[str, ...], *, plain: Callable[[str], PlainLinear], is_gated: bool
) -> gate.Outcome:
    """The layers are left as the gate wants them."""
    switch = QuantizableLinears(model.weights.linears, scheme, plain=plain)
    measuring = GateRows(model)

    def compute(sequences: Sequences, quantized: frozenset[str]) -> Rows:
        switch.set(quantized)
        return measuring.rows(sequences)

    sequences = gate_texts.sequences(model.chosen.folder)
    outcome = gate.check(compute, names, sequences, scheme=scheme.name, is_enforced=is_gated)
    switch.set(outcome.quantized)
    return outcome


def _noted(model: Model, *notes: str) -> Model:
    return dataclasses.replace(model, notes=(*model.notes, *notes))


class QuantizableLinears:
    """Of some linear layers each is either plain or quantized; it is made anew when that changes, so no more than one
    of the two is held here."""

    def __init__(self, linears: dict[str, Linear], scheme: Scheme, *, plain: Callable[[str], PlainLinear]) -> None:
        """`linears` is the model's own, and is changed in place; `plain` gives a layer by its name."""
        self._linears = linears
        self._scheme = scheme
        self._plain = plain

    @property
    def quantized(self) -> frozenset[str]:
        """Names of the layers that are."""
        return frozenset(name for name, linear in self._linears.items() if linear.is_quantized)

    def set(self, quantized: Iterable[str]) -> None:
        """Have these layers quantized and all others plain; they can be read by any of a GPU's streams then."""
        wanted = frozenset(quantized)
        before = self.quantized
        devices = set()
        for name in sorted(before - wanted):
            self._linears[name] = plain = self._plain(name)
            devices.add(plain.weight.device)
        for name in sorted(wanted - before):
            linear = self._linears[name]
            assert isinstance(linear, PlainLinear)
            self._linears[name] = self._scheme.quantize(linear)
            devices.add(linear.weight.device)
        for device in devices:
            if device.type == "cuda":  # streams that compute do not wait for the one that weights are made on
                torch.cuda.synchronize(device)
