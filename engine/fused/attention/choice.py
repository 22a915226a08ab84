"""Which attention kernel a model runs with. Each is timed at load at a few lengths, since the fastest one differs with
head size, length and GPU. Measures nothing itself (see timing.py).

Our own kernel (by tiles) wins ties: it need not know the longest sequence. The others do, so batches with other lengths
need other recorded graphs.
"""

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from engine.fused.attention.torch_kernels import Alternative, CudnnAttend, FlashAttend
from engine.fused.model.blocks import Attend
from engine.fused.model.ops import AttentionRule, Inputs, Ops
from engine.fused.model.spec import Spec

_SEQLENS = (128, 512, 2048, 8192)  # tokens
_ANY_SEQLEN = 1 << 30
_TIE = 1.05  # another has to be faster by more than this


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to attend."""

    name: str
    attend: Attend | None  # None = by tiles, with Ops.attend


Measure = Callable[
    [Candidate, int], float
]  # a candidate, and a length -> seconds; infinite where it can't, or is wrong

TILES = Candidate("tiles", None)


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """Which kernel to use up to which length."""

    candidates: tuple[Candidate, ...]
    bounds: tuple[float, ...]  # the longest sequence for which each but the last holds, ascending
    note: str  # for people

    def attend_for(self, max_seqlen: int) -> Attend | None:
        """For batches whose longest sequence is that long; None = by tiles."""
        return self.candidates[bisect.bisect_left(self.bounds, max_seqlen)].attend

    def kernel_max_seqlen(self, max_seqlen: int) -> int:
        """`Inputs.max_seqlen` for such batches: the same, or the longest at which tiles are chosen, which need none."""
        step = bisect.bisect_left(self.bounds, max_seqlen)
        if self.candidates[step].attend is not None:
            return max_seqlen
        return int(self.bounds[step]) if step < len(self.bounds) else _ANY_SEQLEN


class ChosenAttend:
    """See engine.fused.model.blocks.Attend: as chosen for each batch's max_seqlen."""

    def __init__(self, choice: AttentionChoice, ops: Ops) -> None:
        self._choice = choice
        self._ops = ops

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
        """See Attend."""
        attend = self._choice.attend_for(inputs.max_seqlen)
        if attend is None:
            return self._ops.attend(query, key, value, inputs.tiles, rule)
        return attend(query, key, value, inputs, rule)


def candidates_for(
    spec: Spec, dtype: torch.dtype, capability: tuple[int, int], *, has_bias: bool
) -> tuple[Candidate, ...]:
    """Those that can compute the model; tiles always can. has_bias: it has a table of relative biases."""
    alternatives: tuple[Alternative, ...] = (FlashAttend(), CudnnAttend())
    able = [one for one in alternatives if one.supports(spec, dtype, capability, has_bias=has_bias)]
    return TILES, *(Candidate(one.name, one) for one in able)


def choose(candidates: Iterable[Candidate], measure: Measure, *, max_seqlen: int) -> AttentionChoice:
    """The fastest of the candidates, of which tiles are one, at each length that sequences of the model can have."""
    candidates = tuple(candidates)
    if candidates == (TILES,):
        return AttentionChoice((TILES,), (), "attention by tiles, the only way for this model")
    seqlens = sorted({min(length, max_seqlen) for length in _SEQLENS})
    winners = [_fastest(candidates, measure, length) for length in seqlens]
    # A measured length stands for those that are nearer to it, in ratio, than to the next.
    bounds = [math.sqrt(shorter * longer) for shorter, longer in pairwise(seqlens)]
    steps = [(bound, one) for bound, one in zip([*bounds, math.inf], winners, strict=True)]
    merged = [list(group)[-1] for _, group in groupby(steps, key=lambda step: step[1].name)]
    return AttentionChoice(tuple(one for _, one in merged), tuple(bound for bound, _ in merged[:-1]), _note(merged))


def _fastest(candidates: tuple[Candidate, ...], measure: Measure, length: int) -> Candidate:
    times = {candidate: measure(candidate, length) for candidate in candidates}
    best = min(candidates, key=times.__getitem__)
    return TILES if times[TILES] <= _TIE * times[best] else best


def _note(steps: list[tuple[float, Candidate]]) -> str:
    parts = [f"{one.name} up to {int(bound)} tokens" for bound, one in steps[:-1]]
    last = steps[-1][1].name
    return "attention by " + ", ".join([*parts, f"{last} above" if parts else last]) + ", measured at load"
