"""Whole models on uniform lengths: tokens a second by the size of a batch, at each precision, and against others.

The fused engine's forward is replayed as a graph with its inputs in place, so what is measured is the device. The
transformers engine and sentence-transformers are measured as they run, their host's part included.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu import ceilings
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Call, median_seconds
from benchmarks.gpu.fused_models import FusedModel
from benchmarks.gpu.other_models import SentenceTransformers, packed
from benchmarks.gpu.products import BF16 as PRODUCT_BF16
from benchmarks.gpu.products import FP8_ROW
from benchmarks.gpu.random_models import RandomModel, batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.subject import Subject
from benchmarks.gpu.targets import BF16, FP8
from engine.types import Batch

Rows = Callable[[Batch], Tensor]

KIND, COSINE = "model", "cosine"
TRANSFORMERS, SENTENCE_TRANSFORMERS = "transformers bf16", "sentence-transformers bf16"
PRODUCT_OF = {BF16: PRODUCT_BF16, FP8: FP8_ROW, TRANSFORMERS: PRODUCT_BF16, SENTENCE_TRANSFORMERS: PRODUCT_BF16}
SEQLENS = (128, 512, 8192, 32, 2048)  # those with targets first
_NUM_TOKENS = (1024, 2048, 4096, 8192, 16_384)
_OTHERS_NUM_TOKENS = 16_384
_COMPARED = (BF16, FP8, SENTENCE_TRANSFORMERS)
_NUM_COMPARED = 16  # texts
_SECONDS = 0.25
_ENOUGH = 0.95  # of the best rate: T* is the smallest batch that has it


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is tried."""

    seqlens: tuple[int, ...]
    num_tokens: tuple[int, ...]
    others_num_tokens: int


def sizes_for(shape: Shape, *, is_tiny: bool) -> Sizes:
    """Within what the model takes."""
    if is_tiny:
        return Sizes((8, 32), (32, 64), 64)
    return Sizes(tuple(seqlen for seqlen in SEQLENS if seqlen <= shape.max_seqlen), _NUM_TOKENS, _OTHERS_NUM_TOKENS)


def run(bench: Bench, subject: Subject) -> None:
    """All ways of running it at all lengths."""
    shape, sizes = subject.shape, sizes_for(subject.shape, is_tiny=bench.is_tiny)
    keys = [Key(KIND, shape.name, way, f"S={seqlen}") for way in PRODUCT_OF for seqlen in sizes.seqlens]
    if not bench.are_missing([*keys, *(Key(COSINE, shape.name, way) for way in _COMPARED)]):
        return
    ceilings.again(bench, PRODUCT_BF16, FP8_ROW)
    for way in (BF16, FP8):
        _run_fused(bench, subject, sizes, way)
    _run_transformers(bench, subject.model, sizes)
    _run_sentence_transformers(bench, subject.model, sizes)


def _run_fused(bench: Bench, subject: Subject, sizes: Sizes, way: str) -> None:
    shape, fused = subject.shape, subject.fused(way)
    note = "" if fused.attention is None else fused.attention.note
    bench.measure(Key(COSINE, shape.name, way), partial(_cosines, subject.model, fused.rows, note))
    for seqlen in sizes.seqlens:
        _measure(bench, shape, way, seqlen, _graphs(bench, fused, seqlen, sizes.num_tokens))


def _run_transformers(bench: Bench, model: RandomModel, sizes: Sizes) -> None:
    with packed(model) as rows:
        for seqlen in sizes.seqlens:
            batch = batch_of(model.shape, _seqlens(sizes.others_num_tokens, seqlen))
            _measure(bench, model.shape, TRANSFORMERS, seqlen, {batch.num_tokens: partial(rows, batch)})


def _run_sentence_transformers(bench: Bench, model: RandomModel, sizes: Sizes) -> None:
    key = Key(COSINE, model.shape.name, SENTENCE_TRANSFORMERS)
    bench.measure(key, partial(_cosines, model, _library_rows(model)))
    for seqlen in sizes.seqlens:
        batch = batch_of(model.shape, _seqlens(sizes.others_num_tokens, seqlen))
        call = _Lazy(partial(_library_call, model, batch.token_ids.reshape(-1, seqlen).tolist()))
        _measure(bench, model.shape, SENTENCE_TRANSFORMERS, seqlen, {batch.num_tokens: call})


def _library_call(model: RandomModel, sequences: list[list[int]]) -> Call:
    return SentenceTransformers(model, batch_size=len(sequences)).call(sequences)


def _graphs(bench: Bench, fused: FusedModel, seqlen: int, num_tokens: Sequence[int]) -> dict[int, Call]:
    """By tokens a batch; each is recorded when it is called first, so that no more than one takes memory at a time."""

    def recorded(size: int) -> Call:
        return bench.clock.graph(fused.call(batch_of(fused.shape, _seqlens(size, seqlen))))

    sizes = dict.fromkeys(len(_seqlens(size, seqlen)) * seqlen for size in num_tokens)
    return {size: _Lazy(partial(recorded, size)) for size in sizes}


class _Lazy:
    """A call that is made when it is needed."""

    def __init__(self, make: partial[Call]) -> None:
        self._make = make
        self._made: Call | None = None

    def __call__(self) -> object:
        if self._made is None:
            self._made = self._make()
        return self._made()

    def drop(self) -> None:
        """Give its memory back."""
        self._made = None


def _measure(bench: Bench, shape: Shape, way: str, seqlen: int, calls: dict[int, Call]) -> None:
    key = Key(KIND, shape.name, way, f"S={seqlen}")

    def work() -> Iterator[Figure]:
        rates = {}
        for num_tokens, call in calls.items():
            rates[num_tokens] = num_tokens / median_seconds(bench.clock, [call], seconds=bench.sized(_SECONDS, 0.0))
            if isinstance(call, _Lazy):
                call.drop()
        yield from _rates(rates)
        yield from _shares(bench, shape, way, seqlen, max(rates.values()))
        yield from _ratios(bench, key, max(rates.values()))

    bench.measure(key, work)


def _rates(rates: dict[int, float]) -> Iterator[Figure]:
    best = max(rates.values())
    yield Figure("rate", best, "tokens/s")
    if len(rates) > 1:
        yield Figure("T*", min(size for size, rate in rates.items() if rate >= _ENOUGH * best), "tokens")
        yield from (Figure(f"rate at T={size}", rate, "tokens/s") for size, rate in rates.items())


def _shares(bench: Bench, shape: Shape, way: str, seqlen: int, rate: float) -> Iterator[Figure]:
    ceiling = bench.rows.value(ceilings.ceiling_key(PRODUCT_OF[way]), "rate", run=bench.rows.run)
    if ceiling is None:
        return
    share = rate * shape.flop_per_token(seqlen) / (1e12 * ceiling)
    yield Figure("share", share, "")
    if way in (BF16, FP8):
        yield Figure("share of work done", share * shape.pruned_share(seqlen), "")


def _ratios(bench: Bench, key: Key, rate: float) -> Iterator[Figure]:
    """FP8 beside bf16, and the fused engine's bf16 beside the others."""
    fused = bench.rows.value(Key(key.kind, key.subject, BF16, key.shape), "rate")
    if fused is None or key.precision == BF16:
        return
    if key.precision == FP8:
        yield Figure("times fused bf16", rate / fused, "")
    else:
        yield Figure("fused bf16 is times this", fused / rate, "")


def _cosines(model: RandomModel, theirs: Rows, note: str = "") -> Iterator[Figure]:
    """Rows against those of our transformers engine with the same weights."""
    generator = torch.Generator().manual_seed(1)
    longest = min(model.shape.max_seqlen, 256)
    seqlens = torch.randint(3, longest, (_NUM_COMPARED,), generator=generator).tolist()
    batch = batch_of(model.shape, seqlens)
    with packed(model) as rows:
        expected = rows(batch)
    cosines = torch.cosine_similarity(theirs(batch).double(), expected.double())
    yield Figure("lowest", cosines.min().item(), "")
    yield Figure("median", cosines.median().item(), "", note or f"{_NUM_COMPARED} texts of 3 to {longest} tokens")


def _library_rows(model: RandomModel) -> Rows:
    def rows(batch: Batch) -> Tensor:
        bounds = itertools.pairwise(batch.cu_seqlens.tolist())
        sequences = [batch.token_ids[start:end].tolist() for start, end in bounds]
        library = SentenceTransformers(model, batch_size=_NUM_COMPARED)
        return torch.from_numpy(library.call(sequences)()).to(model.device)

    return rows


def _seqlens(num_tokens: int, seqlen: int) -> list[int]:
    """As many as fit; at least one."""
    return [seqlen] * max(1, num_tokens // seqlen)
