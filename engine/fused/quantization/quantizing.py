"""Quantizes a loaded model, as far as the flags ask for it, the GPU can compute it, and the gate accepts it."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch

from engine.fused.assembly import Model
from engine.fused.model.linear import FP8_MULTIPLE, Fp8Linear, Linear, NoProduct, PlainLinear
from engine.fused.model.spec import Spec
from engine.fused.quantization import gate, gate_texts
from engine.fused.quantization.gate_answers import GateAnswers, noise_of_bfloat16
from engine.fused.quantization.measures import Answers, Measure
from engine.machine.devices import has_fp8
from engine.types import ModelError

# Below it FP8 gains little: products of short rows spend their time on what FP8 does not halve (reading and writing
# rows, quantizing them), and single queries spend it between kernels. An H100 had 1.74 times the tokens a second of
# bfloat16 at 8 billion, and 1.38 times at the 440 million of Qwen3-0.6B (a lone query there: 1.37 ms after 1.07).
MIN_LINEAR_PARAMETERS = 400_000_000
# Below it quantizing the rows that `o` takes costs about what its product gains.
MIN_HIDDEN_SIZE_FOR_O = 1024


def decide(requested: str, *, capability: tuple[int, int] | None, num_linear_parameters: int) -> tuple[bool, str]:
    """Whether it is FP8, and the reason, a line for the log. `requested` is --quantization, `capability` that of the
    GPU, None on a CPU. Raises ModelError if the GPU can't do what is asked for."""
    is_too_old = capability is not None and not has_fp8(capability)
    match requested:
        case "none":
            return False, "not quantized: --quantization none"
        case "fp8" if is_too_old:
            raise ModelError(
                f"--quantization fp8 needs a GPU of compute capability 8.9 or more, and this one has "
                f"{_version(capability)}; --quantization none works on it"
            )
        case "fp8":
            place = " (on a CPU it is for checking, and slow)" if capability is None else ""
            return True, f"FP8: --quantization fp8{place}"
        case "auto" if capability is None or is_too_old:
            found = "a CPU" if capability is None else f"compute capability {_version(capability)}"
            return False, f"not quantized: FP8 needs a GPU of compute capability 8.9 or more, this is {found}"
        case "auto":
            millions = f"{num_linear_parameters / 1e6:,.0f} million parameters in linear layers"
            if num_linear_parameters < MIN_LINEAR_PARAMETERS:
                return False, f"not quantized: with {millions} FP8 would gain little"
            return True, f"FP8: {millions}"
    raise ModelError(f"--quantization {requested} is not for the fused engine; it takes auto, fp8 or none")


def eligible(spec: Spec) -> tuple[str, ...]:
    """Names of the linear layers that may be quantized: those whose sizes, and whose parts' sizes, are multiples of
    FP8_MULTIPLE. Embeddings, norms, attention, projection and heads never are."""
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    sizes = {
        "qkv": (hidden, spec.q_size, spec.kv_size),
        "o": (spec.q_size, hidden),
        "gate_up": (hidden, intermediate),
        "down": (intermediate, hidden),
    }
    if hidden < MIN_HIDDEN_SIZE_FOR_O:
        del sizes["o"]
    kinds = [kind for kind, numbers in sizes.items() if not any(number % FP8_MULTIPLE for number in numbers)]
    return tuple(f"layers.{layer}.{kind}" for layer in range(len(spec.layers)) for kind in kinds)


def quantized(
    model: Model,
    requested: str,
    *,
    plain: Callable[[str], PlainLinear],
    is_gated: bool,
    probe: Callable[[Spec, Sequence[str]], None],
) -> tuple[Model, gate.Outcome | None]:
    """The model with its linear layers exchanged where that was decided, with notes of why; and what the gate found.

    requested: "none", "auto" or "fp8"; plain: reads a linear layer anew; is_gated: layers that cost too much go back;
    probe: tries the products of some layers. Raises ModelError if the GPU can't do what is asked for.
    """
    is_fp8, reason = decide(
        requested, capability=model.chosen.capability, num_linear_parameters=model.spec.num_linear_parameters
    )
    if not is_fp8:
        return _noted(model, reason), None
    names = eligible(model.spec)
    if not names:
        why = f"no linear layer's sizes are multiples of {FP8_MULTIPLE}, as {gate.SCHEME} needs them"
        if requested != "auto":
            raise ModelError(f"--quantization {requested}: {why}")
        return _noted(model, f"not quantized: {why}"), None
    try:
        probe(model.spec, names)
    except NoProduct as error:
        if requested != "auto":
            raise
        return _noted(model, f"not quantized: {error}"), None
    outcome = _through_gate(model, names, plain=plain, is_gated=is_gated)
    noted = _noted(model, reason, outcome.note)
    return (dataclasses.replace(noted, quantization="fp8") if outcome.quantized else noted), outcome


def _through_gate(
    model: Model, names: tuple[str, ...], *, plain: Callable[[str], PlainLinear], is_gated: bool
) -> gate.Outcome:
    """The layers are left as the gate wants them."""
    switch = QuantizableLinears(model.weights.linears, plain=plain)
    chosen = model.chosen
    texts = gate_texts.fixed_and_long(chosen.folder, is_cpu=chosen.capability is None)
    answers = GateAnswers(model, texts)

    def compute(numbers: Sequence[int], quantized: frozenset[str]) -> Answers:
        switch.set(quantized)
        return answers(numbers)

    subject = gate.Subject(
        seqlens=[len(sequence) for sequence in texts.sequences],
        compute=compute,
        measure=Measure(chosen.folder.activation, texts.num_ranked),
        noise=lambda: noise_of_bfloat16(chosen),
    )
    outcome = gate.check(subject, names, is_enforced=is_gated)
    switch.set(outcome.quantized)
    return outcome


def _noted(model: Model, *notes: str) -> Model:
    return dataclasses.replace(model, notes=(*model.notes, *notes))


class QuantizableLinears:
    """Linear layers of which each is either plain or quantized; it is made anew when that changes, so no more than one
    of the two is held here."""

    def __init__(self, linears: dict[str, Linear], *, plain: Callable[[str], PlainLinear]) -> None:
        """`linears` is the model's own, and is changed in place; `plain` gives a layer by its name."""
        self._linears = linears
        self._plain = plain

    @property
    def quantized(self) -> frozenset[str]:
        """Names of the layers that are."""
        return frozenset(name for name, linear in self._linears.items() if linear.is_quantized)

    def set(self, quantized: Iterable[str]) -> None:
        """Have these layers quantized and all others plain; they can be read by any of a GPU's streams then."""
        wanted, before, devices = frozenset(quantized), self.quantized, set()
        for name in sorted(before - wanted):
            self._linears[name] = plain = self._plain(name)
            devices.add(plain.weight.device)
        for name in sorted(wanted - before):
            linear = self._linears[name]
            assert isinstance(linear, PlainLinear)
            self._linears[name] = Fp8Linear.of(linear)
            devices.add(linear.weight.device)
        for device in devices:
            if device.type == "cuda":  # streams that compute do not wait for the one that weights are made on
                torch.cuda.synchronize(device)


def _version(capability: tuple[int, int] | None) -> str:
    assert capability is not None
    return ".".join(map(str, capability))
