"""Which attention is measured at which sizes, in which order, and which sizes of ours turned out best. Pure."""

import collections
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.gpu.rows import Rows

TILES, BY_BOXES, FLASH = "tiles", "tiles by TMA", "FlashAttention-2"
CUDNN, CUDNN_IN_GRAPH = "cuDNN", "cuDNN in a graph"
CANDIDATES = (TILES, BY_BOXES, FLASH, CUDNN, CUDNN_IN_GRAPH)  # a process each; the last one has ended its own


@dataclass(frozen=True, slots=True)
class Case:
    """N query heads, H key heads, D numbers a head, sequences of S tokens."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    seqlen: int
    is_causal: bool
    is_swept: bool = False  # in all sizes of ours

    def __str__(self) -> str:
        heads = f"D={self.head_dim} N={self.num_heads} H={self.num_kv_heads}"
        return f"{heads} S={self.seqlen}{' causal' if self.is_causal else ''}"


@dataclass(frozen=True, slots=True)
class Launch:
    """Sizes of our kernel's launch, for tiles of 128 queries; its text is what the table in the kernel's file takes."""

    keys: int  # a step
    warps: int
    stages: int
    registers: int | None = None
    by_boxes: bool = False

    def __str__(self) -> str:
        registers = "" if self.registers is None else f", {self.registers}"
        return f"Sizes({self.keys}, {self.warps}, {self.stages}{registers}{', by_boxes=True' * self.by_boxes})"


_FIRST = (  # what models are made of
    Case(32, 8, 128, 512, is_causal=True, is_swept=True),
    Case(16, 16, 64, 512, is_causal=False, is_swept=True),
    Case(32, 8, 128, 8192, is_causal=True, is_swept=True),
    Case(12, 12, 32, 128, is_causal=False),
    Case(16, 8, 128, 8192, is_causal=True),
    Case(16, 16, 64, 8192, is_causal=False, is_swept=True),
    Case(3, 1, 256, 512, is_causal=False, is_swept=True),
)
_MAX_ERROR = 0.02  # of what may be best
_HEADS, _SEQLENS = ((32, 8, 128), (16, 8, 128), (16, 16, 64), (12, 12, 32)), (512, 128, 8192, 32, 2048)
_TINY = (Case(4, 2, 16, 24, is_causal=True), Case(4, 2, 16, 24, is_causal=False))
# By D rounded up, today's first. 32 keys in 128 registers leave room for two programs a multiprocessor, 80 for three.
_LAUNCHES = {
    64: (
        Launch(64, 8, 3, 128), Launch(32, 8, 4, 80), Launch(32, 8, 4, 128), Launch(64, 8, 4, 128), Launch(128, 8, 2),
        Launch(64, 8, 3, 128, True), Launch(32, 8, 4, 80, True), Launch(128, 8, 3, None, True),
    ),
    128: (
        Launch(64, 8, 3), Launch(32, 8, 4, 128), Launch(32, 8, 3, 128), Launch(64, 8, 4), Launch(128, 8, 2),
        Launch(32, 8, 4, 128, True), Launch(64, 8, 3, None, True), Launch(64, 8, 4, None, True),
    ),
    256: (Launch(32, 8, 3), Launch(32, 8, 2), Launch(32, 8, 3, None, True)),
}  # fmt: skip


def cases(*, is_tiny: bool) -> list[Case]:
    """Those that matter most, then all head shapes at all lengths, causal and not."""
    if is_tiny:
        return list(_TINY)
    first = {str(case) for case in _FIRST}
    grid = (
        Case(*heads, seqlen, causal) for heads, seqlen, causal in itertools.product(_HEADS, _SEQLENS, (True, False))
    )
    return [*_FIRST, *(case for case in grid if str(case) not in first)]


def launches(case: Case, *, by_boxes: bool) -> list[Launch]:
    """The sizes of ours that are tried there, with boxes or without."""
    if not case.is_swept:
        return []
    return [launch for launch in _LAUNCHES[max(64, case.head_dim)] if launch.by_boxes == by_boxes]


def best(rows: Rows) -> list[str]:
    """A line for each head size that was swept: the fastest sizes over its lengths, as the kernel's table has them."""
    rates: dict[int, dict[str, dict[str, float]]] = collections.defaultdict(lambda: collections.defaultdict(dict))
    for row in rows.of_kind("attention"):
        head_dim, launch = re.match(r"D=(\d+)", row.key.shape), row.key.subject.removeprefix(f"{TILES} ")
        error = rows.value(row.key, "error")
        if head_dim and launch != row.key.subject and row.figure.metric == "rate in a graph":
            is_right = error is not None and error < _MAX_ERROR
            rates[int(head_dim[1])][launch][row.key.shape] = row.figure.value if is_right else 0.0
    return [_line(head_dim, by_launch) for head_dim, by_launch in sorted(rates.items())]


def _line(head_dim: int, rates: Mapping[str, Mapping[str, float]]) -> str:
    """Only sizes that were measured wherever today's were can be best."""
    today = str(_LAUNCHES[head_dim][0])
    known = rates.get(today, {})
    if not known:
        return f"D={head_dim}: today's sizes were not measured"
    speeds = {
        launch: math.prod(of_launch[shape] / rate for shape, rate in known.items()) ** (1 / len(known))
        for launch, of_launch in rates.items()
        if of_launch.keys() >= known.keys()
    }
    fastest = max(speeds, key=lambda launch: speeds[launch])
    beside = f"{speeds[fastest]:.2f} times {today}, over {len(known)} of {_num_swept(head_dim)} cases"
    return f"`SIZES[9][{head_dim}][128] = {fastest}`: {beside}"


def _num_swept(head_dim: int) -> int:
    return sum(case.is_swept and case.head_dim == head_dim for case in _FIRST)
