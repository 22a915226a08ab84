"""The interface of a scheme that quantizes linear layers, and the schemes by name. Knows no model.

One file for each scheme. MXFP8, the native format of Blackwell, would be one more: its `quantize` gives each 32 numbers
of a weight's row a scale that is a power of two (float8_e8m0fnu), laid out in the tiles of 128 x 4 that cuBLASLt reads;
its layer calls the product with 1 x 32 block scales on both sides; `tensors` and `restore` name those two and the
bias; `precision.py` decides for it from compute capability 10.0 on; K is a multiple of 32, and parts begin
at multiples of 128, since scales lie in such tiles. The ops then have to quantize rows that way too:
`QuantizedRows.scales` becomes [T, K / 32], and whoever asks an op for quantized rows says by which scheme.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from engine.fused.model.linear import Linear, PlainLinear
from engine.fused.quantization.fp8_row import Fp8Row


class Scheme(Protocol):
    """One way of quantizing. A layer of it takes `QuantizedRows`."""

    @property
    def name(self) -> str:
        """A part of the cache's key."""
        ...

    @property
    def multiple(self) -> int:
        """K, N, and the bounds of parts are multiples of it."""
        ...

    def quantize(self, linear: PlainLinear) -> Linear:
        """The layer, quantized; keeps nothing of the weight it is given. Raises ValueError where sizes do not fit."""
        ...

    def tensors(self, linear: Linear) -> dict[str, Tensor]:
        """What a layer that `quantize` gave consists of, for a file."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], *, dtype: torch.dtype) -> Linear:
        """The inverse of `tensors`; `dtype` is the compute dtype. Raises ValueError where they are something else."""
        ...


def scheme_of(name: str) -> Scheme:
    """By its name. Raises KeyError for one that isn't there."""
    return {scheme.name: scheme for scheme in (Fp8Row(),)}[name]
