"""FlashAttention-2 as it is called; what it computes is for a GPU to say."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.machine.varlen import has_varlen, varlen

POSITIONAL = "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask"


def test_this_torch_has_the_operator_as_we_know_it() -> None:
    arguments = torch.ops.aten._flash_attention_forward.default._schema.arguments
    assert " ".join(each.name for each in arguments if not each.kwarg_only) == POSITIONAL
    by_name = {each.name: each.has_default_value() for each in arguments if each.kwarg_only}
    assert {"scale", "window_size_left", "window_size_right"} <= by_name.keys()
    assert all(by_name.values())


@pytest.mark.parametrize(
    ("is_causal", "window", "sizes"),
    [(False, None, (-1, -1)), (True, None, (-1, 0)), (True, 5, (4, 0)), (False, 5, (4, 4)), (False, 1, (0, 0))],
)
def test_windows_are_told_as_the_operator_counts_them(
    monkeypatch: pytest.MonkeyPatch, is_causal: bool, window: int | None, sizes: tuple[int, int]
) -> None:
    cases = []

    def attention(query: torch.Tensor, *others: Any, **named: Any) -> tuple[torch.Tensor]:
        left, right = named["window_size_left"], named["window_size_right"]
        cases.append(((left, right), others[4:6], named["scale"], others[7]))
        return (query,)

    monkeypatch.setattr(torch.ops, "aten", SimpleNamespace(_flash_attention_forward=attention))
    rows = torch.empty((4, 2, 20))
    bounds = torch.tensor([0, 1, 2], dtype=torch.int32)
    answer = varlen(rows, rows, rows, bounds, 1, is_causal=is_causal, scaling=0.5, window=window)
    assert answer.shape == rows.shape  # heads of 20 numbers are padded to 24, and cut again
    assert cases == [(sizes, (2, 2), 0.5, sizes == (-1, 0))]


def test_it_is_taken_by_this_torch() -> None:
    """On tensors without numbers."""
    query, key = (torch.empty((9, heads, 32), dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    bounds = torch.empty(3, dtype=torch.int32, device="meta")
    assert varlen(query, key, key, bounds, 9, is_causal=True, scaling=0.2).shape == query.shape


def test_what_it_is_for() -> None:
    assert has_varlen(256, torch.bfloat16, (8, 0))
    assert not has_varlen(257, torch.bfloat16, (9, 0))
    assert not has_varlen(64, torch.float32, (9, 0))
    assert not has_varlen(64, torch.float16, (7, 5))
