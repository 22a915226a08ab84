"""FlashAttention-2 as it is called; what it computes is for a GPU to say."""

from dataclasses import dataclass

import pytest
import torch

from engine.machine import varlen as module
from engine.machine.varlen import by_function, by_operator, has_varlen, takes_known, varlen


@dataclass(frozen=True)
class Argument:
    name: str
    kwarg_only: bool = False
    is_optional: bool = True

    def has_default_value(self) -> bool:
        return self.is_optional


NAMES = "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask"
POSITIONAL = [Argument(name) for name in NAMES.split()]
BY_NAME = [Argument(name, kwarg_only=True) for name in ("scale", "window_size_left", "window_size_right")]
NEW = Argument("num_splits", kwarg_only=True)


def test_this_torch_has_the_operator_as_we_know_it() -> None:
    assert takes_known(torch.ops.aten._flash_attention_forward.default._schema.arguments)


@pytest.mark.parametrize(
    ("arguments", "is_known"),
    [
        ([*POSITIONAL, *BY_NAME], True),
        ([*POSITIONAL, *BY_NAME, NEW], True),
        ([*POSITIONAL, *BY_NAME, Argument("needed", kwarg_only=True, is_optional=False)], False),
        ([*POSITIONAL, Argument("another"), *BY_NAME], False),
        ([*reversed(POSITIONAL), *BY_NAME], False),
        ([*POSITIONAL, *BY_NAME[:2]], False),
    ],
)
def test_other_arguments_are_noticed(arguments: list[Argument], is_known: bool) -> None:
    assert takes_known(arguments) == is_known


@pytest.mark.parametrize(
    ("is_causal", "window", "sizes"),
    [(False, None, (-1, -1)), (True, None, (-1, 0)), (True, 5, (4, 0)), (False, 5, (4, 4)), (False, 1, (0, 0))],
)
def test_windows_are_told_as_the_operator_counts_them(
    monkeypatch: pytest.MonkeyPatch, is_causal: bool, window: int | None, sizes: tuple[int, int]
) -> None:
    cases = []

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, case: module._Case) -> torch.Tensor:
        cases.append(case)
        return query

    monkeypatch.setattr(module, "_attention", lambda: attention)
    rows = torch.empty((4, 2, 20))
    bounds = torch.tensor([0, 1, 2], dtype=torch.int32)
    answer = varlen(rows, rows, rows, bounds, 1, is_causal=is_causal, scaling=0.5, window=window)
    assert answer.shape == rows.shape  # heads of 20 numbers are padded to 24, and cut again
    assert [(case.window, case.max_seqlen, case.scaling) for case in cases] == [(sizes, 2, 0.5)]


@pytest.mark.parametrize("attention", [by_operator, by_function])
def test_both_ways_are_taken_by_this_torch(attention: module._Attention) -> None:
    """On tensors without numbers."""
    query, key = (torch.empty((9, heads, 32), dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    bounds = torch.empty(3, dtype=torch.int32, device="meta")
    assert attention(query, key, key, module._Case(bounds, 9, 0.2, (-1, 0))).shape == query.shape


def test_what_it_is_for() -> None:
    assert has_varlen(256, torch.bfloat16, (8, 0))
    assert not has_varlen(257, torch.bfloat16, (9, 0))
    assert not has_varlen(64, torch.float32, (9, 0))
    assert not has_varlen(64, torch.float16, (7, 5))
