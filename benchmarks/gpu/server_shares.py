"""Which share of the engine's own rate the server keeps, with batches of the same tokens and with the best ones.

What the engine does alone is taken from the rows of the models where they are; else it is measured shortly.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import hold
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import TOOK, Figure, Key
from benchmarks.gpu.shapes import Shape
from benchmarks.gpu.throughput import KIND as MODEL
from benchmarks.gpu.throughput import graph_or_call

KIND = "server"
BULK_RATE, TOKENS_A_BATCH = "bulk rate", "tokens a batch"
SHARE, SHARE_OF_BEST = "share of the engine's rate", "share of its best rate"
_MAIN_SEQLEN = 512  # of the targets, which name no length
_BEST_NUM_TOKENS = 8192  # of a batch that is near the best rate of every model
_ALIKE = 0.1  # sizes of batches that differ by less are the same here
_SECONDS = 0.5


def bulk_key(shape: Shape, way: str, seqlen: int) -> Key:
    """Of bulk without queries."""
    return Key(KIND, shape.name, way, f"bulk alone{_suffix(seqlen)}")


def both_key(shape: Shape, way: str, seqlen: int) -> Key:
    """Of bulk and queries together."""
    return Key(KIND, shape.name, way, f"both loads{_suffix(seqlen)}")


def note_share(bench: Bench, subject: Subject, seqlen: int) -> None:
    """Once bulk of this length is measured."""
    key = bulk_key(subject.shape, subject.way, seqlen)
    rate, num_tokens = (bench.rows.value(key, metric) for metric in (BULK_RATE, TOKENS_A_BATCH))
    if not rate or not num_tokens or bench.rows.value(key, SHARE) is not None:
        return
    keys = tuple(Key(kind, subject.shape.name, subject.way, f"S={seqlen}") for kind in (MODEL, "engine alone"))
    if like(rates(bench, *keys), num_tokens) is None and bench.rows.value(keys[1], TOOK) is None:
        bench.measure(keys[1], partial(_rates, bench, subject, seqlen, num_tokens), again=True)
    known = rates(bench, *keys)
    if (size := like(known, num_tokens)) is not None:
        bench.rows.add(
            key,
            [
                Figure(SHARE, rate / known[size], "", f"batches of {size} tokens: {known[size]:,.0f} tokens/s"),
                Figure(SHARE_OF_BEST, rate / max(known.values()), "", f"{max(known.values()):,.0f} tokens/s"),
            ],
        )


def rates(bench: Bench, *keys: Key) -> dict[int, float]:
    """Tokens a second by the tokens of a batch."""
    found = {}
    for row in bench.rows:
        if row.key in keys and (size := re.fullmatch(r"rate at T=(\d+)", row.figure.metric)):
            found[int(size[1])] = row.figure.value
    return found


def like(known: Mapping[int, float], num_tokens: float) -> int | None:
    """The known size next to this one, if it is near enough."""
    nearest = min(known, key=lambda size: abs(size - num_tokens), default=None)
    return nearest if nearest is not None and abs(nearest - num_tokens) <= _ALIKE * num_tokens else None


def _rates(bench: Bench, subject: Subject, seqlen: int, num_tokens: float) -> Iterator[Figure]:
    """The last text of a batch is shorter where its tokens are not whole texts."""
    for size in sorted({round(num_tokens), _BEST_NUM_TOKENS}):
        num_whole, rest = divmod(size, seqlen)
        batch = batch_of(subject.shape, [seqlen] * num_whole + [rest] * bool(rest))
        call, note = graph_or_call(bench, subject.fused.call(batch))
        held = hold(bench.clock, [call], seconds=bench.sized(_SECONDS, 0.0))
        note = "; ".join(filter(None, (note, str(held.load or ""))))
        yield Figure(f"rate at T={size}", size / held.seconds, "tokens/s", note)


def _suffix(seqlen: int) -> str:
    return "" if seqlen == _MAIN_SEQLEN else f", {seqlen} tokens a text"
