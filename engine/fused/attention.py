"""Which attention kernel a model runs with: ours by tiles (kernels/), FlashAttention-2 or cuDNN's. The fastest one
differs with head size, length and GPU, so each is timed at load, and rejected if it fails or is wrong there.

- Ours need not know the longest sequence, so it wins ties. The others take its length as a size: a recorded graph holds
  for batches up to that length, and launches programs for queries that are not there.
- PyTorch's two compute neither softcaps nor relative biases, and cuDNN's no windows.
- PyTorch builds cuDNN's plan anew on every call for packed sequences: its cache is looked up and never filled (torch
  2.11 and 2.13, https://github.com/pytorch/pytorch/pull/191576). That is some 42 ms of the host's time for each layer,
  which a recorded graph spends once. So what costs the host as much runs only where a graph of a large batch is
  recorded, and something else wherever kernels are called one by one.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from engine.fused.model.blocks import Attend
from engine.fused.model.ops import AttentionRule, Inputs, Ops
from engine.fused.model.spec import Spec
from engine.machine.varlen import has_varlen, varlen

_SEQLENS = (128, 512, 2048, 8192)  # tokens
_TILES_SEQLEN = 2048  # at which tiles are compared among themselves
_ANY_SEQLEN = 1 << 30
_TIE = 1.05  # another has to be faster by more than this
_MAX_HOST = 0.002  # seconds of the host a call; the launch of a kernel takes it 0.0001
_LARGE = 2048  # tokens of a batch whose graph is worth dear calls while it is recorded
_MAX_CUDNN_HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to attend."""

    name: str
    attend: Attend | None  # None = with Ops.attend
    is_by_tiles: bool = False  # otherwise it takes the longest sequence's length as a size


TILES = Candidate("tiles", None, is_by_tiles=True)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way costs."""

    device: float  # seconds in all layers, for about a full batch; infinite where it can't, or is wrong
    host: float = 0.0  # seconds that a call keeps the host outside of graphs


NEVER = Cost(math.inf)
Measure = Callable[[Candidate, int], Cost]  # a candidate, and a length in tokens


@dataclass(frozen=True, slots=True)
class Steps:
    """The fastest candidates by length."""

    candidates: tuple[Candidate, ...]
    bounds: tuple[float, ...]  # the longest sequence for which each but the last holds, ascending

    def at(self, max_seqlen: int) -> Candidate:
        """For batches whose longest sequence is that long."""
        return self.candidates[bisect.bisect_left(self.bounds, max_seqlen)]

    def end(self, max_seqlen: int) -> int:
        """The longest for which `at` gives the same."""
        step = bisect.bisect_left(self.bounds, max_seqlen)
        return int(self.bounds[step]) if step < len(self.bounds) else _ANY_SEQLEN

    def __str__(self) -> str:
        parts = [
            f"{one.name} up to {int(bound)} tokens" for one, bound in zip(self.candidates, self.bounds, strict=False)
        ]
        last = self.candidates[-1].name
        return ", ".join([*parts, f"{last} above" if parts else last])


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """Which kernel to use up to which length."""

    recorded: Steps  # in graphs of large batches
    called: Steps  # everywhere else: none that keeps the host long
    note: str  # for people

    @property
    def needs_graphs(self) -> bool:
        """Whether large batches are faster in graphs because of what runs only there."""
        return self.recorded != self.called

    def candidate(self, max_seqlen: int, num_tokens: int, *, is_recorded: bool) -> Candidate:
        """For batches of this size whose longest sequence is that long."""
        return (self.recorded if is_recorded and num_tokens >= _LARGE else self.called).at(max_seqlen)

    def kernel_max_seqlen(self, max_seqlen: int, num_tokens: int) -> int:
        """`Inputs.max_seqlen` for such batches: the same, or the longest at which tiles are chosen, which need none."""
        both = (self.recorded, self.called) if num_tokens >= _LARGE else (self.called,)
        if not all(steps.at(max_seqlen).is_by_tiles for steps in both):
            return max_seqlen
        return min(steps.end(max_seqlen) for steps in both)


@dataclass(frozen=True, slots=True)
class ChosenAttend:
    """See engine.fused.model.blocks.Attend: as chosen for each batch, and for whether it is being recorded."""

    choice: AttentionChoice
    ops: Ops

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
        is_recorded = torch.cuda.is_current_stream_capturing()
        attend = self.choice.candidate(inputs.max_seqlen, len(query), is_recorded=is_recorded).attend
        if attend is None:
            return self.ops.attend(query, key, value, inputs.tiles, rule)
        return attend(query, key, value, inputs, rule)


def candidates_for(
    spec: Spec, dtype: torch.dtype, capability: tuple[int, int], *, has_bias: bool, max_seqlen: int
) -> tuple[Candidate, ...]:
    """Those that can compute the model and differ for sequences of up to this many tokens; tiles always can.

    has_bias: the model has a table of relative biases.
    """
    is_16_bit = dtype in (torch.float16, torch.bfloat16)
    if has_bias or not is_16_bit:
        return (TILES,)
    from engine.fused.kernels.attention import VARIED_BLOCK, VariedAttend, variants  # Triton need not be there on a CPU

    # Tiles of that many queries are for sequences of more than half as many tokens (packing.choose_block).
    varied = variants(spec.head_dim, capability) if max_seqlen > VARIED_BLOCK // 2 else {}
    tiles = [TILES, *(Candidate(name, VariedAttend(sizes), is_by_tiles=True) for name, sizes in varied.items())]
    if spec.softcap is not None:
        return tuple(tiles)
    others = []
    if has_varlen(spec.head_dim, dtype, capability):
        others.append(Candidate("FlashAttention-2", flash_attend))
    has_window = any(layer.window is not None for layer in spec.layers)
    is_head = spec.head_dim <= _MAX_CUDNN_HEAD_DIM and spec.head_dim % 8 == 0
    # for Hopper and data-centre Blackwell
    if is_head and not has_window and capability[0] in (9, 10):
        others.append(Candidate("cuDNN", cudnn_attend))
    return (*tiles, *others)


def flash_attend(query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
    """See Attend. FlashAttention-2, made for Ampere, so it leaves a part of Hopper unused."""
    return varlen(
        query,
        key,
        value,
        inputs.cu_seqlens,
        inputs.max_seqlen,
        is_causal=rule.is_causal,
        scaling=rule.scaling,
        window=rule.window,
    )


def cudnn_attend(query: Tensor, key: Tensor, value: Tensor, inputs: Inputs, rule: AttentionRule) -> Tensor:
    """See Attend. For packed sequences PyTorch has it only as a private operator."""
    bounds = (inputs.cu_seqlens, inputs.cu_seqlens, inputs.max_seqlen, inputs.max_seqlen)
    options = (False, 0.0, rule.is_causal, False)  # no log-sum-exp, no dropout, no debug mask
    attend = torch.ops.aten._cudnn_attention_forward
    rows: Tensor = attend(query, key, value, None, *bounds, *options, scale=rule.scaling)[0]
    return rows


def choose(candidates: Iterable[Candidate], measure: Measure, *, max_seqlen: int) -> AttentionChoice:
    """The fastest of the candidates, of which tiles are some, at each length that sequences of the model can have.

    Of the ways to go by tiles only the fastest at one length is kept, as they differ by head size.
    """
    candidates = tuple(candidates)
    by_tiles = [candidate for candidate in candidates if candidate.is_by_tiles]
    tiles, how = by_tiles[0], "the only way for this model"
    if len(by_tiles) > 1:
        length = min(_TILES_SEQLEN, max_seqlen)
        tiles, how = min(by_tiles, key=lambda one: measure(one, length).device), "measured at load"
    candidates = (tiles, *(candidate for candidate in candidates if not candidate.is_by_tiles))
    if len(candidates) == 1:
        only = Steps(candidates, ())
        return AttentionChoice(only, only, f"attention by {tiles.name}, {how}")
    costs = {
        length: {candidate: measure(candidate, length) for candidate in candidates}
        for length in sorted({min(length, max_seqlen) for length in _SEQLENS})
    }
    dear = {one for by_candidate in costs.values() for one, cost in by_candidate.items() if cost.host > _MAX_HOST}
    recorded = _fastest_by_length(costs, without=frozenset())
    called = _fastest_by_length(costs, without=frozenset(dear - {tiles}))
    note = f"attention by {called}, measured at load"
    if recorded != called:
        note += f"; in graphs of at least {_LARGE} tokens by {recorded}"
    return AttentionChoice(recorded, called, note)


def _fastest_by_length(costs: Mapping[int, Mapping[Candidate, Cost]], *, without: frozenset[Candidate]) -> Steps:
    left = [{one: cost for one, cost in of_length.items() if one not in without} for of_length in costs.values()]
    # A measured length stands for those that are nearer to it, in ratio, than to the next.
    bounds = [math.sqrt(shorter * longer) for shorter, longer in pairwise(costs)]
    steps = zip([*bounds, math.inf], map(_fastest, left), strict=True)
    merged = [list(group)[-1] for _, group in groupby(steps, key=lambda step: step[1])]
    return Steps(tuple(one for _, one in merged), tuple(bound for bound, _ in merged[:-1]))


def _fastest(costs: Mapping[Candidate, Cost]) -> Candidate:
    best = min(costs, key=lambda candidate: costs[candidate].device)
    tiles = next(candidate for candidate in costs if candidate.is_by_tiles)
    return tiles if costs[tiles].device <= _TIE * costs[best].device else best
