"""Whether what lies in padding can change a row: token 0, which padding is made of, gets an embedding of NaN."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.subject import Subject
from benchmarks.gpu.targets import BF16, FP8

KIND = "padding"
_SEQLENS = (5, 17, 1, 33, 9)  # not a multiple of anything, so the batch is padded


def run(bench: Bench, subject: Subject) -> None:
    """At both precisions."""
    for way in (BF16, FP8):
        bench.measure(Key(KIND, subject.shape.name, way, "NaN"), partial(_changed, subject, way))


def _changed(subject: Subject, way: str) -> Iterator[Figure]:
    fused = subject.fused(way)
    batch = batch_of(fused.shape, _SEQLENS)
    _, shape = fused.packed(batch)
    assert shape.num_tokens > batch.num_tokens
    before = fused.rows(batch)
    words = fused.weights.tensors["words"]
    of_padding = words[0].clone()
    words[0] = torch.nan
    after = fused.rows(batch)
    words[0] = of_padding
    changed = (before != after).any(dim=1).sum().item()  # NaN is unlike itself, so a row of it counts
    yield Figure("changed rows", changed, "", f"of {batch.num_seqs}, beside {shape.num_tokens - batch.num_tokens} rows")
