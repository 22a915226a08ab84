"""Which attention is chosen, by times made up."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.fused.attention import (
    TILES,
    AttentionChoice,
    Candidate,
    ChosenAttend,
    Cost,
    candidates_for,
    choose,
    cudnn_attend,
    flash_attend,
)
from engine.fused.kernels.attention import VARIED_BLOCK
from engine.fused.model.ops import AttentionRule, Inputs
from engine.fused.model.reference import ReferenceOps
from engine.fused.model.spec import LayerSpec
from engine.fused.runner.packing import choose_block
from tests.engine.fused.attention.cases import Case, inputs_of, rule_of, spec_of

HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)


def marked(query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
    return torch.full_like(query, 7)


FLASH = Candidate("flash", marked)
CUDNN = Candidate("cudnn", marked)
ALL = (TILES, FLASH, CUDNN)


class Times:
    """Seconds by name and length; what is not there takes one. host: those of calls, by name."""

    def __init__(self, times: Mapping[tuple[str, int], float], **host: float) -> None:
        self.asked: list[tuple[str, int]] = []
        self._times = times
        self._host = host

    def __call__(self, candidate: Candidate, seqlen: int) -> Cost:
        self.asked.append((candidate.name, seqlen))
        return Cost(self._times.get((candidate.name, seqlen), 1.0), self._host.get(candidate.name, 0.0001))


def attend_for(choice: AttentionChoice, length: int, *, num_tokens: int = 16384, is_recorded: bool = True) -> object:
    return choice.candidate(length, num_tokens, is_recorded=is_recorded).attend


def test_the_fastest_is_chosen_by_length() -> None:
    times = Times({("flash", 512): 0.5, ("cudnn", 2048): 0.5, ("cudnn", 8192): 0.4, ("flash", 8192): 0.6})
    choice = choose(ALL, times, max_seqlen=32768)
    assert [attend_for(choice, length) is marked for length in (1, 256, 257, 1024, 1025, 32768)] == [False] * 2 + [
        True
    ] * 4
    assert choice.recorded.candidates == (TILES, FLASH, CUDNN)
    assert choice.recorded.bounds == (256, 1024)
    assert [choice.kernel_max_seqlen(length, 16384) for length in (1, 256, 512, 2048)] == [256, 256, 512, 2048]
    assert choice.note == "attention by tiles up to 256 tokens, flash up to 1024 tokens, cudnn above, measured at load"


def test_tiles_win_ties() -> None:
    choice = choose(ALL, Times({("flash", 128): 0.96, ("cudnn", 512): 0.96}), max_seqlen=512)
    assert choice.recorded.candidates == (TILES,)
    assert choice.kernel_max_seqlen(1, 16384) == choice.kernel_max_seqlen(512, 16384) > 512
    assert attend_for(choice, 500) is None
    assert choice.note == "attention by tiles, measured at load"


@pytest.mark.holds("An attention kernel is used only if it agreed with ours at load")
def test_what_cannot_or_is_wrong_is_never_chosen() -> None:
    never = {(name, length): math.inf for name in ("flash", "cudnn") for length in (128, 300)}
    times = Times({**never, ("tiles", 128): 9.0})
    assert choose(ALL, times, max_seqlen=300).recorded.candidates == (TILES,)


def test_lengths_that_the_model_cannot_have_are_not_measured() -> None:
    times = Times({})
    choose(ALL, times, max_seqlen=514)
    assert sorted({length for _, length in times.asked}) == [128, 512, 514]
    times = Times({})
    choose(ALL, times, max_seqlen=64)
    assert {length for _, length in times.asked} == {64}


def test_nothing_is_measured_where_there_is_no_choice() -> None:
    times = Times({})
    choice = choose((TILES,), times, max_seqlen=512)
    assert times.asked == []
    assert attend_for(choice, 512) is None
    assert choice.kernel_max_seqlen(1, 16384) == choice.kernel_max_seqlen(512, 16384)


def test_what_attention_is_told_leads_to_the_same_choice() -> None:
    choice = choose(ALL, Times({("flash", 512): 0.5, ("cudnn", 8192): 0.4}), max_seqlen=32768)
    assert choice.recorded.candidates == (TILES, FLASH, TILES, CUDNN)
    for length in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768):
        rounded = choice.kernel_max_seqlen(length, 16384)
        assert rounded >= length
        assert attend_for(choice, rounded) is attend_for(choice, length)


@pytest.mark.holds("Attention that keeps the host long runs only in graphs")
def test_what_keeps_the_host_long_runs_only_in_graphs_of_large_batches() -> None:
    times = Times({("cudnn", 2048): 0.5, ("cudnn", 8192): 0.4, ("flash", 8192): 0.6}, cudnn=0.042)
    choice = choose(ALL, times, max_seqlen=32768)
    assert choice.needs_graphs
    assert choice.recorded.candidates == (TILES, CUDNN)
    assert choice.called.candidates == (TILES, FLASH)
    assert choice.candidate(8192, 16384, is_recorded=True) is CUDNN
    assert choice.candidate(8192, 16384, is_recorded=False) is FLASH
    assert choice.candidate(1500, 1536, is_recorded=True) is TILES
    # what is called first and recorded later must be told the length in both cases
    assert choice.kernel_max_seqlen(2048, 16384) == 2048
    assert choice.kernel_max_seqlen(2048, 1536) == 4096
    assert choice.kernel_max_seqlen(512, 16384) == 1024
    assert choice.note == (
        "attention by tiles up to 4096 tokens, flash above, measured at load; "
        "in graphs of at least 2048 tokens by tiles up to 1024 tokens, cudnn above"
    )


def test_tiles_stay_however_long_their_calls_take() -> None:
    choice = choose(ALL, Times({}, tiles=0.1), max_seqlen=512)
    assert choice.called.candidates == (TILES,)
    assert not choice.needs_graphs


@pytest.mark.parametrize(("max_seqlen", "is_other"), [(100, False), (400, True)])
def test_batches_go_to_what_was_chosen_for_their_length(
    max_seqlen: int, is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(lengths=(40, 3))
    choice = choose(ALL, Times({("flash", 512): 0.1}), max_seqlen=512)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    attend = ChosenAttend(choice, ReferenceOps())
    rows = attend(*case.views(), inputs_of(case, max_seqlen=max_seqlen), rule_of(case))
    assert bool((rows == 7).all()) == is_other


@pytest.mark.parametrize(
    ("changed", "dtype", "capability", "has_bias", "names"),
    [
        ({}, torch.bfloat16, HOPPER, False, ["tiles", "FlashAttention-2", "cuDNN"]),
        ({}, torch.bfloat16, AMPERE, False, ["tiles", "FlashAttention-2"]),
        ({}, torch.float16, TURING, False, ["tiles"]),
        ({}, torch.float32, HOPPER, False, ["tiles"]),
        ({}, torch.bfloat16, HOPPER, True, ["tiles"]),
        ({"softcap": 50.0}, torch.bfloat16, HOPPER, False, ["tiles"]),
        ({"layers": (LayerSpec(), LayerSpec(window=9))}, torch.bfloat16, HOPPER, False, ["tiles", "FlashAttention-2"]),
        ({"head_dim": 256}, torch.bfloat16, HOPPER, False, ["tiles", "FlashAttention-2"]),
    ],
)
def test_candidates_are_those_that_can(
    changed: dict[str, object], dtype: torch.dtype, capability: tuple[int, int], has_bias: bool, names: list[str]
) -> None:
    found = candidates_for(spec_of(**changed), dtype, capability, has_bias=has_bias, max_seqlen=512)
    assert [candidate.name for candidate in found if candidate is TILES or not candidate.is_by_tiles] == names
    is_varied = capability == HOPPER and dtype == torch.bfloat16 and not has_bias
    assert (sum(candidate.is_by_tiles for candidate in found) > 1) == is_varied


@pytest.mark.parametrize("max_seqlen", [16, 64, 65, 128])
def test_ways_that_are_the_same_for_a_models_lengths_are_not_timed_twice(max_seqlen: int) -> None:
    """What differs are tiles of 128 queries, so there is one way where no batch has such tiles."""
    found = candidates_for(spec_of(), torch.bfloat16, HOPPER, has_bias=False, max_seqlen=max_seqlen)
    blocks = {choose_block(np.array([0, length, 2 * length], np.int32)) for length in range(1, max_seqlen + 1)}
    assert (sum(candidate.is_by_tiles for candidate in found) > 1) == (VARIED_BLOCK in blocks) == (max_seqlen > 64)


def test_of_tiles_the_fastest_is_compared_with_others() -> None:
    varied = Candidate("tiles of 128 keys", marked, is_by_tiles=True)
    times = Times({("tiles of 128 keys", 2048): 0.8, ("flash", 8192): 0.5})
    choice = choose((TILES, varied, FLASH), times, max_seqlen=32768)
    assert choice.recorded.candidates == (varied, FLASH)
    assert ("tiles", 512) not in times.asked
    assert choice.kernel_max_seqlen(64, 16384) == 4096  # the variant need not know the longest sequence
    alone = choose((TILES, varied), Times({("tiles of 128 keys", 2048): 0.8}), max_seqlen=32768)
    assert alone.note == "attention by tiles of 128 keys, measured at load"


def test_operators_take_what_they_are_given() -> None:
    """On tensors without numbers: arguments are checked before it is seen that one operator can't do without."""
    case = Case(lengths=(40, 3), num_heads=4, dtype=torch.bfloat16)
    query, key, value = (part.to("meta") for part in case.views())
    inputs, rule = inputs_of(case, max_seqlen=64), rule_of(case, is_causal=True)
    assert flash_attend(query, key, value, inputs, rule).shape == query.shape
    with pytest.raises(NotImplementedError, match="Meta tensors"):
        cudnn_attend(query, key, value, inputs, rule)
