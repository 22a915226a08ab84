"""The ways of quantizing linear layers, by name."""

from engine.fused.quantization.fp8_row import Fp8Row
from engine.fused.quantization.scheme import Scheme


def scheme_of(name: str) -> Scheme:
    """By its name. Raises KeyError for one that isn't there."""
    return {scheme.name: scheme for scheme in (Fp8Row(),)}[name]
