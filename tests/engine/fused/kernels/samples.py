"""What the tests of kernels compare, and how. The same tests run interpreted where there is no GPU."""

from typing import Any

import torch
from torch import Tensor

from engine.fused.kernels import TritonOps
from engine.fused.model.ops import Norm, NormedRows, QuantizedRows
from engine.fused.model.reference import ReferenceOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# What a few roundings of float32 in another order leave, and one rounding to the dtype that falls the other way.
RELATIVE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
ABSOLUTE = 2e-6

Result = Tensor | QuantizedRows | NormedRows | None


class Samples:
    """Random tensors on the device, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        print("seed", seed)

    def rows(self, num_rows: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normally distributed [num_rows, width]."""
        return torch.randn(num_rows, width, generator=self._generator).to(DEVICE, dtype)

    def norm(self, width: int, kind: str, *, has_bias: bool = False, eps: float = 1e-6) -> Norm:
        """Weights around 1, and a bias where wanted."""
        weight = self.rows(1, width)[0] * 0.2 + 1
        return Norm(kind, weight, self.rows(1, width)[0] if has_bias else None, eps)

    def numbers(self, length: int, end: int) -> Tensor:
        """int32 [length], below `end`."""
        return torch.randint(0, end, (length,), generator=self._generator, dtype=torch.int32).to(DEVICE)


def assert_as_reference(op: str, *arguments: Any, **named: Any) -> None:
    """The kernel of this op gives what its meaning in torch gives. A sum is exact, as it is rounded once."""
    actual, expected = (getattr(ops, op)(*arguments, **named) for ops in (TritonOps(), ReferenceOps()))
    assert_alike(actual, expected)
    if isinstance(expected, NormedRows) and expected.residual is not None:
        assert torch.equal(actual.residual, expected.residual)


def assert_alike(actual: Result, expected: Result) -> None:
    match actual, expected:
        case Tensor(), Tensor():
            assert_near(actual, expected)
        case QuantizedRows(), QuantizedRows():
            assert_quantized_alike(actual, expected)
        case NormedRows(total, rows, quantized), NormedRows(expected_total, expected_rows, expected_quantized):
            assert_alike(total, expected_total)
            assert_alike(rows, expected_rows)
            assert_alike(quantized, expected_quantized)
        case None, None:
            pass
        case _:
            raise AssertionError((type(actual), type(expected)))


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Equal dtype, and equal but for roundings; NaN where NaN is expected."""
    dtype = expected.dtype
    torch.testing.assert_close(actual, expected, rtol=RELATIVE[dtype], atol=ABSOLUTE, equal_nan=True)


def assert_quantized_alike(actual: QuantizedRows, expected: QuantizedRows, *, share_off: float = 0.01) -> None:
    """The same scales but for roundings, and the same numbers but for a few that lie between two of float8."""
    assert actual.values.dtype == expected.values.dtype
    assert actual.values.shape == expected.values.shape
    assert actual.scales.shape == expected.scales.shape
    torch.testing.assert_close(actual.scales, expected.scales, rtol=RELATIVE[torch.float32], atol=0, equal_nan=True)
    codes, expected_codes = (steps(part.values) for part in (actual, expected))
    difference = (codes - expected_codes).abs()
    assert int(difference.max()) <= 1
    assert float((difference > 0).float().mean()) <= share_off


def steps(values: Tensor) -> Tensor:
    """int16: how many float8 numbers lie between 0 and each; neighbours differ by 1."""
    codes = values.view(torch.uint8).to(torch.int16)
    return torch.where(codes < 128, codes, 128 - codes)
