"""Whole models on uniform lengths: tokens a second by the size of a batch, at each precision, and against others.

The fused engine's forward is replayed as a graph with its inputs in place, and so is transformers' own: what is
measured is the device, for a second at each size, so that clocks settle. Where no graph can be made, it is called. The
transformers engine and sentence-transformers are measured as they run, their host's part included.
"""

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu import ceilings
from benchmarks.gpu.bench import Bench, one_line
from benchmarks.gpu.card import Load
from benchmarks.gpu.clock import Call, hold
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.other_models import SentenceTransformers, full_rows, packed
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.targets import BF16, COMPILED, FP8, GRAPH, PRODUCT_OF, SENTENCE_TRANSFORMERS, TRANSFORMERS
from engine.types import Batch

KIND, COSINE, RATIO = "model", "cosine", "ratio"
SEQLENS = (512, 128, 8192, 32, 2048)  # those with targets first
_TINY_SEQLENS = (8, 32)
_NUM_TOKENS = (8192, 16_384, 4096, 2048, 1024)  # for the first length; the others have the first two
SMALL = 1024  # tokens of a batch whose rate is also told as a share of the best
_TINY_NUM_TOKENS = (32, 64)
_NUM_COMPARED = 16  # texts
_SECONDS = 1.0
_ENOUGH = 0.95  # of the best rate: T* is the smallest batch that has it
RATIOS = ((FP8, BF16), *((BF16, other) for other in (TRANSFORMERS, GRAPH, COMPILED, SENTENCE_TRANSFORMERS)))


def seqlens_for(shape: Shape, way: str, *, is_tiny: bool) -> tuple[int, ...]:
    """Within what the model takes. Each costs a compiler anew."""
    found = _TINY_SEQLENS if is_tiny else tuple(seqlen for seqlen in SEQLENS if seqlen <= shape.max_seqlen)
    return found[:1] if way == COMPILED else found


def run(bench: Bench, subject: Subject, seqlen: int) -> None:
    """Texts of one length."""
    key = Key(KIND, subject.shape.name, subject.way, f"S={seqlen}")
    bench.measure(key, partial(_rates, bench, subject, seqlen))
    note_ratios(bench, KIND, subject.shape, key.shape)


def compare(bench: Bench, subject: Subject) -> None:
    """Rows against those of our transformers engine with the same weights."""
    if subject.way not in (TRANSFORMERS, COMPILED):
        bench.measure(Key(COSINE, subject.shape.name, subject.way), partial(_cosines, subject))


def note_ratios(bench: Bench, kind: str, shape: Shape, what: str) -> None:
    """Of the rates of two ways to run a model, as soon as both are known."""
    for one, other in RATIOS:
        key = Key(RATIO, shape.name, f"{one} / {other}", what)
        rates = [bench.rows.value(Key(kind, shape.name, way, what), "rate") for way in (one, other)]
        if all(rates) and key not in bench.rows:
            bench.rows.add(key, [Figure("times", rates[0] / rates[1], "")])  # type: ignore[operator]


def _rates(bench: Bench, subject: Subject, seqlen: int) -> Iterator[Figure]:
    rates: dict[int, float] = {}
    loads: dict[int, Load | None] = {}
    is_ours, sizes = subject.way in (BF16, FP8), _sizes(bench, subject, seqlen)
    for num_tokens in dict.fromkeys(len(_seqlens(size, seqlen)) * seqlen for size in sizes):
        batch = batch_of(subject.shape, _seqlens(num_tokens, seqlen))
        with _callable(bench, subject, batch, seqlen) as (call, note):
            held = hold(bench.clock, [call], seconds=bench.sized(_SECONDS, 0.0))
        del call  # gives its graph's memory back
        rates[num_tokens], loads[num_tokens] = num_tokens / held.seconds, held.load
        notes = "; ".join(filter(None, (note, str(held.load or ""))))
        yield Figure(f"rate at T={num_tokens}", rates[num_tokens], "tokens/s", notes)
    best = max(rates, key=lambda size: rates[size])
    yield Figure("rate", rates[best], "tokens/s", note)
    if (load := loads[best]) is not None:
        yield Figure("SM clock", load.sm_mhz, "MHz")
    if is_ours and sizes == _NUM_TOKENS:
        yield Figure("T*", min(size for size, rate in rates.items() if rate >= _ENOUGH * rates[best]), "tokens")
        yield Figure(f"share of best at T={SMALL}", rates[SMALL] / rates[best], "")
    yield from _shares(bench, subject, seqlen, rates[best])


def _sizes(bench: Bench, subject: Subject, seqlen: int) -> tuple[int, ...]:
    if bench.is_tiny:
        return _TINY_NUM_TOKENS
    if subject.way in (BF16, FP8):
        return _NUM_TOKENS if seqlen == SEQLENS[0] else _NUM_TOKENS[:2]
    return _NUM_TOKENS[1::-1] if subject.way == GRAPH else (max(_NUM_TOKENS),)


@contextlib.contextmanager
def _callable(bench: Bench, subject: Subject, batch: Batch, seqlen: int) -> Iterator[tuple[Call, str]]:
    """And what is to be said of it."""
    if subject.way == TRANSFORMERS:
        with packed(subject.model) as rows:
            yield partial(rows, batch), ""
    elif subject.way == SENTENCE_TRANSFORMERS:
        sequences = batch.token_ids.reshape(-1, seqlen).tolist()
        yield SentenceTransformers(subject.model, batch_size=len(sequences)).call(sequences), ""
    elif subject.way in (GRAPH, COMPILED):
        with full_rows(subject.model, is_compiled=subject.way == COMPILED) as rows:
            token_ids = torch.from_numpy(batch.token_ids.reshape(-1, seqlen)).to(subject.device)
            yield graph_or_call(bench, partial(rows, token_ids))
    else:
        yield graph_or_call(bench, subject.fused.call(batch))


def graph_or_call(bench: Bench, call: Call) -> tuple[Call, str]:
    """A graph of it; where none can be made, the call itself, and why."""
    try:
        return bench.clock.graph(call), ""
    except RuntimeError as error:
        return call, f"called, without a graph: {one_line(error)}"


def _shares(bench: Bench, subject: Subject, seqlen: int, rate: float) -> Iterator[Figure]:
    ceiling = bench.rows.value(ceilings.ceiling_key(PRODUCT_OF[subject.way]), "rate", run=bench.rows.run)
    if ceiling is None:
        return
    share = rate * subject.shape.flop_per_token(seqlen) / (1e12 * ceiling)
    yield Figure("share", share, "")
    if subject.way in (BF16, FP8):
        yield Figure("share of work done", share * subject.shape.pruned_share(seqlen), "")


def _cosines(subject: Subject) -> Iterator[Figure]:
    generator = torch.Generator().manual_seed(1)
    longest = min(subject.shape.max_seqlen, 256)
    batch = batch_of(subject.shape, torch.randint(3, longest, (_NUM_COMPARED,), generator=generator).tolist())
    with packed(subject.model) as rows:
        expected = rows(batch)
    theirs = {SENTENCE_TRANSFORMERS: _library_rows, GRAPH: _transformers_rows}.get(subject.way, _fused_rows)
    cosines = torch.cosine_similarity(theirs(subject, batch).double(), expected.double())
    yield Figure("lowest", cosines.min().item(), "")
    yield Figure("median", cosines.median().item(), "", f"{_NUM_COMPARED} texts of 3 to {longest} tokens")


def _fused_rows(subject: Subject, batch: Batch) -> Tensor:
    return subject.fused.rows(batch)


def _transformers_rows(subject: Subject, batch: Batch) -> Tensor:
    """One by one: they take rows without padding."""
    bounds = itertools.pairwise(batch.cu_seqlens.tolist())
    token_ids = torch.from_numpy(batch.token_ids).to(subject.device)
    with full_rows(subject.model, is_compiled=False) as rows:
        return torch.cat([rows(token_ids[None, start:end]) for start, end in bounds])


def _library_rows(subject: Subject, batch: Batch) -> Tensor:
    bounds = itertools.pairwise(batch.cu_seqlens.tolist())
    sequences = [batch.token_ids[start:end].tolist() for start, end in bounds]
    library = SentenceTransformers(subject.model, batch_size=_NUM_COMPARED)
    return torch.from_numpy(library.call(sequences)()).to(subject.device)


def _seqlens(num_tokens: int, seqlen: int) -> list[int]:
    """As many as fit; at least one."""
    return [seqlen] * max(1, num_tokens // seqlen)
