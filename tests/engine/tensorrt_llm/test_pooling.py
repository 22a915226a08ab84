"""Pooling of packed rows: equal to the transformers engine's, whatever shape a CUDA graph was recorded for."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from engine.rows import with_torch as reference
from engine.tensorrt_llm.models import pool
from engine.tensorrt_llm.planning.head import POOLINGS

SIZE = 24
SEQLENS = (5, 17, 1, 30, 9, 9, 13, 1)
# What gives the host a number of the device's; a graph can't be recorded of it.
READS_BACK = ("_local_scalar_dense", "nonzero", "equal", "unique", "masked_select", "repeat_interleave")


def rows(num_tokens: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(num_tokens, SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)


def lengths(seqlens: Sequence[int]) -> Tensor:
    """As the library's metadata has them."""
    return torch.tensor(seqlens, dtype=torch.int32)


def expected(token_rows: Tensor, seqlens: Sequence[int], pooling: str) -> Tensor:
    bounds = torch.tensor([0, *seqlens]).cumsum(0)
    return reference.pool(token_rows, bounds, poolings=(pooling,))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("seqlens", [SEQLENS, (1,), (7,), (1, 1, 1), (3, 700)], ids=str)
def test_rows_are_those_of_the_transformers_engine(pooling: str, seqlens: Sequence[int]) -> None:
    token_rows = rows(sum(seqlens))

    found = pool(token_rows, lengths(seqlens), pooling)

    torch.testing.assert_close(found, expected(token_rows, seqlens, pooling), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("num_empty", "num_padding"), [(0, 11), (3, 0), (3, 11)])
def test_padding_of_a_recorded_shape_changes_no_row(pooling: str, num_empty: int, num_padding: int) -> None:
    """Tokens behind the last sequence hold whatever an earlier batch left there."""
    token_rows = rows(sum(SEQLENS))
    padded = torch.cat((token_rows, torch.full((num_padding, SIZE), torch.nan)))

    found = pool(padded, lengths((*SEQLENS, *[0] * num_empty)), pooling)

    assert found.shape == (len(SEQLENS) + num_empty, SIZE)
    assert torch.equal(found[: len(SEQLENS)], pool(token_rows, lengths(SEQLENS), pooling))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_are_in_float32(pooling: str, dtype: torch.dtype) -> None:
    """A mean in bfloat16 would be off by far more."""
    seqlens = (700, 3)
    token_rows = rows(sum(seqlens), dtype)

    found = pool(token_rows, lengths(seqlens), pooling)

    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected(token_rows.float(), seqlens, pooling), rtol=0, atol=1e-5)


def operations(computed: Callable[..., Tensor], *tensors: Tensor) -> list[Any]:
    """Those of the device, found without any tensor's values."""
    traced: Any = make_fx(computed, tracing_mode="fake")(*tensors)
    return [node for node in traced.graph.nodes if node.op == "call_function"]


def readings(found: list[Any]) -> list[str]:
    """What the host would have to wait for: a number, or how large a result is."""
    by_name = [str(node.target) for node in found if any(word in str(node.target) for word in READS_BACK)]
    sizes = {str(node.target): getattr(node.meta["val"], "shape", ()) for node in found}
    return by_name + [name for name, shape in sizes.items() if not all(isinstance(size, int) for size in shape)]


@pytest.mark.holds("TensorRT-LLM pooling never synchronises with the host")
@pytest.mark.parametrize("pooling", POOLINGS)
def test_nothing_is_read_back_to_the_host(pooling: str) -> None:
    """Else a CUDA graph could not be recorded, or would repeat the lengths of the first batch for ever."""

    def computed(token_rows: Tensor, seq_lens: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(pool(token_rows, seq_lens, pooling), weight)

    found = operations(computed, rows(64, torch.bfloat16), lengths((*SEQLENS, 0)), rows(2))

    assert any("cumsum" in str(node.target) for node in found)  # the lengths are an input, not a constant
    assert readings(found) == []


@pytest.mark.parametrize(
    "computed",
    [
        lambda token_rows, seq_lens: token_rows * seq_lens.sum().item(),
        lambda token_rows, seq_lens: torch.stack([part[-1] for part in token_rows.split(seq_lens.tolist())]),
        lambda token_rows, seq_lens: token_rows[token_rows[:, 0] > 0],
        lambda token_rows, seq_lens: token_rows.repeat_interleave(seq_lens, 0),
    ],
    ids=["numbers", "lists", "masks", "repeats"],
)
def test_a_planted_reading_is_found(computed: Callable[..., Tensor]) -> None:
    assert readings(operations(computed, rows(8), lengths([1] * 8)))
