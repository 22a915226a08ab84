"""Exchanges a model's plain linear layers for quantized ones and back. Knows not why."""

from collections.abc import Callable, Iterable

import torch

from engine.fused.model.linear import Linear, PlainLinear
from engine.fused.quantization.scheme import Scheme


class LinearSwitch:
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
