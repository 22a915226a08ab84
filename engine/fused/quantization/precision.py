"""Decides which linear layers are quantized, and the order in which they are reverted if that costs too much fidelity.

Pure: knows no tensors.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.fused.model.spec import Spec
from engine.machine.devices import has_fp8
from engine.types import ModelError

# Below it FP8 gains little: products of short rows spend their time on what FP8 does not halve (reading and writing
# rows, quantizing them), and single queries spend it between kernels. Predicted to be worth it from here on (1.2 times
# the tokens a second and more); to be measured.
MIN_LINEAR_PARAMETERS = 500_000_000
# Below it quantizing the rows that `o` takes costs about what its product gains.
MIN_HIDDEN_SIZE_FOR_O = 1024

# What `o` and `down` take comes out of attention and of a gated product, where no norm keeps outliers down; `o` gains
# least, too. (all-MiniLM-L6-v2, not gated, has none: there `o` costs least and `gate_up` most.)
_BEHIND_NO_NORM = ("o", "down")
_BEHIND_NORM = ("qkv", "gate_up")


@dataclass(frozen=True, slots=True)
class Precision:
    """The decision for one model."""

    scheme: str | None  # None = nothing is quantized
    reason: str  # a line for the log


def decide(requested: str, *, capability: tuple[int, int] | None, num_linear_parameters: int) -> Precision:
    """`requested` is --quantization, `capability` that of the GPU, None on a CPU.

    Raises ModelError if the GPU can't do what is asked for.
    """
    is_too_old = capability is not None and not has_fp8(capability)
    match requested:
        case "none":
            return Precision(None, "not quantized: --quantization none")
        case "fp8" if is_too_old:
            raise ModelError(
                f"--quantization fp8 needs a GPU of compute capability 8.9 or more, and this one has "
                f"{_version(capability)}; --quantization none works on it"
            )
        case "fp8":
            place = " (on a CPU it is for checking, and slow)" if capability is None else ""
            return Precision("fp8_row", f"FP8: --quantization fp8{place}")
        case "auto" if capability is None or is_too_old:
            found = "a CPU" if capability is None else f"compute capability {_version(capability)}"
            return Precision(None, f"not quantized: FP8 needs a GPU of compute capability 8.9 or more, this is {found}")
        case "auto":
            millions = f"{num_linear_parameters / 1e6:,.0f} million parameters in linear layers"
            if num_linear_parameters < MIN_LINEAR_PARAMETERS:
                return Precision(None, f"not quantized: with {millions} FP8 would gain little")
            return Precision("fp8_row", f"FP8: {millions}")
    raise ModelError(f"--quantization {requested} is not for the fused engine; it takes auto, fp8 or none")


def eligible(spec: Spec, *, multiple: int) -> tuple[str, ...]:
    """Names of the linear layers that may be quantized: those of the layers whose sizes, and whose parts' sizes, are
    multiples of `multiple`. Embeddings, norms, attention, projection and heads never are."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    sizes = {
        "qkv": (hidden, queries, keys),
        "o": (queries, hidden),
        "gate_up": (hidden, intermediate),
        "down": (intermediate, hidden),
    }
    if hidden < MIN_HIDDEN_SIZE_FOR_O:
        del sizes["o"]
    kinds = [kind for kind, numbers in sizes.items() if not any(number % multiple for number in numbers)]
    return tuple(f"layers.{layer}.{kind}" for layer in range(len(spec.layers)) for kind in kinds)


def by_layer(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of each layer."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layer = name.rpartition(".")[0]
        layers[layer] = (*layers.get(layer, ()), name)
    return layers


def steps_back(
    names: Iterable[str], sensitivity: Mapping[str, float], bad: frozenset[str] = frozenset()
) -> list[tuple[str, ...]]:
    """The order in which layers go back: a few names a step, after the last step all have.

    `sensitivity` is what quantizing a layer alone costs, by layer, in any unit; `bad` are the layers that cost too much
    alone. Those go first. Then `o` and `down` of all layers, then the rest of the layers, in both the most sensitive
    first.
    """
    layers = by_layer(names)
    steps = [
        (layer not in bad, stage, -sensitivity[layer], tuple(name for name in layers[layer] if _kind(name) in kinds))
        for layer in layers
        for stage, kinds in enumerate((_BEHIND_NO_NORM, _BEHIND_NORM))
    ]
    return [step for *_, step in sorted(steps, key=lambda step: step[:3]) if step]


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _version(capability: tuple[int, int] | None) -> str:
    assert capability is not None
    return ".".join(map(str, capability))
