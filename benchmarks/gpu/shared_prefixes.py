"""Texts that begin alike, as a reranker's do: the rate where that is computed once, beside each computed whole.

The device alone, as in throughput. 70 tokens before documents of 200 and 100 are about what Qwen3-Reranker's template
and a short query are.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import hold
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.rows import Figure, Key
from benchmarks.gpu.throughput import graph_or_call
from engine.types import Batch

KIND = "shared prefix"
_PREFIX, _DOCUMENTS, _NUM_TOKENS = 70, (200, 100), 16_384
_TINY_PREFIX, _TINY_DOCUMENTS, _TINY_NUM_TOKENS = 7, (20, 10), 128
_SECONDS = 1.0


def run(bench: Bench, subject: Subject) -> None:
    """Where tokens see none behind them; for other models there is nothing to share."""
    if not subject.shape.is_causal:
        return
    prefix = _TINY_PREFIX if bench.is_tiny else _PREFIX
    for seqlen in _TINY_DOCUMENTS if bench.is_tiny else _DOCUMENTS:
        key = Key(KIND, subject.shape.name, subject.way, f"{prefix} + {seqlen}")
        bench.measure(key, partial(_rates, bench, subject, prefix, seqlen))


def _rates(bench: Bench, subject: Subject, prefix: int, seqlen: int) -> Iterator[Figure]:
    shared = sharing(subject, prefix, seqlen, max_num_tokens=_TINY_NUM_TOKENS if bench.is_tiny else _NUM_TOKENS)
    whole = replace(shared, shared=None)
    rates, notes = [], []
    for batch in (whole, shared):
        call, note = graph_or_call(bench, subject.fused.call(batch))
        held = hold(bench.clock, [call], seconds=bench.sized(_SECONDS, 0.0))
        del call  # gives its graph's memory back
        rates.append(batch.num_tokens / held.seconds)
        notes.append("; ".join(filter(None, (note, str(held.load or "")))))
    yield Figure("rate whole", rates[0], "tokens/s", notes[0])
    yield Figure("rate", rates[1], "tokens/s", notes[1])
    yield Figure("times", rates[1] / rates[0], "")
    assert shared.shared is not None
    yield Figure("sent / computed", shared.num_tokens / (shared.num_tokens - int(shared.shared.sum())), "")
    rows, expected = (subject.fused.rows(batch).double() for batch in (shared, whole))
    yield Figure("lowest cosine", torch.cosine_similarity(rows, expected).min().item(), "", f"{len(rows)} texts")


def sharing(subject: Subject, prefix: int, seqlen: int, *, max_num_tokens: int) -> Batch:
    """As many documents of one request as fit where each is computed whole."""
    num_texts = max_num_tokens // (prefix + seqlen)
    batch = batch_of(subject.shape, [prefix + seqlen] * num_texts)
    ids = batch.token_ids.reshape(num_texts, -1)
    ids[:, :prefix] = ids[0, :prefix]
    return replace(batch, shared=np.array([0] + [prefix] * (num_texts - 1), np.int32))
