"""Products of rows with weights, plain or quantized. How a weight is quantized is its scheme's.

Shapes: T rows, K numbers a row, N numbers a product.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from engine.fused.model.ops import Rows


class Linear(Protocol):
    """rows @ weight.T + bias."""

    @property
    def is_quantized(self) -> bool:
        """Whether it takes `QuantizedRows`; otherwise a plain tensor."""
        ...

    def __call__(self, rows: Rows) -> Tensor:
        """[T, N] in the model's compute dtype."""
        ...

    def part(self, start: int, end: int) -> "Linear":
        """The one that gives columns start … end - 1 of the product; shares the weights."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """In the compute dtype."""

    weight: Tensor  # [N, K]
    bias: Tensor | None  # [N]

    @property
    def is_quantized(self) -> bool:
        """See Linear."""
        return False

    def __call__(self, rows: Rows) -> Tensor:
        """See Linear."""
        assert isinstance(rows, Tensor)
        return functional.linear(rows, self.weight, self.bias)

    def part(self, start: int, end: int) -> "PlainLinear":
        """See Linear."""
        return PlainLinear(self.weight[start:end], None if self.bias is None else self.bias[start:end])
