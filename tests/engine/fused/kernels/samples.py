"""What the tests of kernels compare, and how. The same tests run interpreted where there is no GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.fused.kernels import TritonOps
from engine.fused.model.ops import TILE_FIELDS, Norm, NormedRows, QuantizedRows, RaggedRows, Tiles
from engine.fused.model.reference import ReferenceOps
from engine.fused.packing import tile_table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# What a few roundings of float32 in another order leave, and one rounding to the dtype that falls the other way.
RELATIVE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
ABSOLUTE = 2e-6
# Of sums of up to a thousand products in another order. Rounded to bfloat16 they would be off by a hundred times that.
ABSOLUTE_OF_PRODUCTS = 5e-5

Result = Tensor | QuantizedRows | NormedRows | RaggedRows | None


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


def bounds_of(seqlens: Sequence[int]) -> Tensor:
    """cu_seqlens."""
    return torch.tensor([0, *seqlens], device=DEVICE).cumsum(0).to(torch.int32)


def tiles_of(seqlens: Sequence[int], block: int, *, num_padded: int = 0) -> Tiles:
    """Tiles of all tokens, as a packed batch has them."""
    table = tile_table(bounds_of(seqlens).cpu().numpy(), block=block)
    padded = np.concatenate((table, np.zeros((num_padded, TILE_FIELDS), np.int32)))
    return Tiles(torch.from_numpy(padded).to(DEVICE), block)


def own_entries(rows: RaggedRows) -> Tensor:
    """Those that are filled, on the CPU."""
    return rows.entries[: int(rows.counts.sum())].cpu()


def dense_of(rows: RaggedRows, num_words: int) -> Tensor:
    """[B, words], on the CPU. Ids of a sequence have to ascend, and no weight is 0."""
    assert rows.counts.dtype == torch.int32
    dense = torch.zeros(len(rows.counts), num_words)
    for number, entries in enumerate(torch.split(own_entries(rows), rows.counts.tolist())):
        ids = entries[:, 0].long()
        assert (ids.diff() > 0).all()
        assert (entries[:, 1] != 0).all()
        dense[number, ids] = entries[:, 1]
    return dense


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
        case RaggedRows(), RaggedRows():
            num_words = 1 + int(max(own_entries(rows)[:, 0].max() for rows in (actual, expected)))
            dense, expected_dense = (dense_of(rows, num_words) for rows in (actual, expected))
            torch.testing.assert_close(dense, expected_dense, rtol=0, atol=ABSOLUTE_OF_PRODUCTS, equal_nan=True)
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
