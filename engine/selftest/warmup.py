"""The first batches of a freshly loaded engine: checks the rows, and measures speed and best batch size.

The canary is a small batch whose rows the engine knows from then on. Computed again, it shows whether it is sound.
"""

import dataclasses
import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from engine.selftest.comparison import TOLERANCE, comparable, largest_difference, not_finite
from engine.types import (
    Batch,
    Engine,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    OutputKind,
    Results,
    compute,
    main_output,
)

_SEQLENS = (1, 5, 5, 16)  # tokens, of the canary too; equal lengths are there on purpose
_SHORTER = (5,)  # tokens of a canary where those take long: a query that comes behind it waits for it
_MAX_CANARY_SECONDS = 0.05  # by the measured rate; longer ones get those
_SEQLEN = 64  # tokens of each sequence in the batches that are measured
_SIZES = (128, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)  # tokens of these
_RATE_SIZE = 1024  # tokens of the batch that is measured where the target is known
_PREFIX = 75  # tokens that texts of a request share: a reranker's template with a short query
_GROUPS = (512, 1024, 2048, 4096)  # unique tokens of a batch of such texts; of the largest the prefix is 2 %
_SHORTEST = 1e-6  # seconds of a batch of any size, whatever a line through costs says
_MIN_TARGET = 512  # tokens: what is gained below is small, and what a busy machine makes of the figures is not
_MAX_SECONDS = 0.6  # for all of them together
_NUM_STAGED = 4  # batches one behind the other, where it is the rate of many that is wanted
_ENOUGH = 0.95  # of the best rate: what larger batches gain beyond it is not worth the wait
# The difference tolerated between two runs of one engine: wider than rounding, since mini-batches may be cut in another
# way the second time, and far below what damaged weights or a broken device give.
_MIN_TOLERANCE = 1e-3
_MAX_TOLERANCE = 0.3


def warm_up(engine: Engine) -> EngineLimits:
    """Run a few batches on all streams at once; the engine's limits with what was measured. Raises ModelError where a
    row is not as it should be."""
    seqlens = [min(seqlen, engine.limits.max_seqlen) for seqlen in _SEQLENS]
    _run(engine, seqlens)  # the very first batches also pay for lazy initialisation
    seconds = _run(engine, seqlens)
    if engine.limits.target_num_tokens:  # known without measuring
        return dataclasses.replace(engine.limits, tokens_per_second=_rate(engine, sum(seqlens) / seconds))
    costs = _costs(engine)
    rates = {num_tokens: num_tokens / seconds for num_tokens, seconds in costs.items()}
    # A GPU is never slower with more tokens, and under a long load it holds a lower clock than in so short a trial (8B
    # in FP8 on an H100 seemed to have all of its rate with 1,024 tokens, and has 90 %), so time alone bounds its batch.
    target = 0 if engine.limits.token_buckets else _target(rates)
    rate = rates[target] if target else max(rates.values())
    has_groups = engine.info.shares_prefixes and not engine.limits.token_buckets
    return dataclasses.replace(
        engine.limits,
        tokens_per_second=rate,
        target_num_tokens=target,
        fixed_batch_seconds=max(0.0, _seconds_of(costs, 0)),
        group_tokens=engine.limits.group_tokens or (_group(costs, engine.limits) if has_groups else 0),
    )


def _rate(engine: Engine, least: float) -> float:
    """Tokens per second where the batch to be measured is known; `least` is what small batches reach."""
    affordable = min(int(least * _MAX_SECONDS / 4), engine.limits.target_num_tokens, _RATE_SIZE)
    seqlens = _equal_seqlens(engine.limits, affordable)
    rate = sum(seqlens) / _run(engine, seqlens)
    if rate < 0.7 * least:  # it compiled something for a shape that it had not seen
        rate = sum(seqlens) / _run(engine, seqlens)
    return rate


def _costs(engine: Engine) -> dict[int, float]:
    """Seconds of a batch on one stream by its tokens, as far as there is time to measure them.

    An engine that has buckets prepares each size the first two times that it meets it, which are left out, and hides
    what the host does with a batch behind the one ahead, so there several are measured together.
    """
    costs: dict[int, float] = {}
    seconds_left = _MAX_SECONDS
    num_staged = _NUM_STAGED if engine.limits.token_buckets else 1
    for size, larger in zip(_SIZES, (*_SIZES[1:], 0), strict=True):
        seqlens = _equal_seqlens(engine.limits, size)
        if engine.limits.token_buckets:
            _run(engine, seqlens, 2)
        trials = [_run(engine, seqlens, num_staged)]
        if 2 * num_staged * trials[0] <= seconds_left:
            trials.append(_run(engine, seqlens, num_staged))  # the quicker counts: others start at the same time
        num_tokens, seconds = sum(seqlens), min(trials)
        costs[num_tokens] = seconds
        seconds_left -= num_staged * sum(trials)
        # the second size is always tried: without it nobody knows what a batch costs of its own
        is_long = len(costs) > 1 and _seconds_of(costs, larger) > engine.limits.max_batch_seconds
        is_last = num_tokens < size or is_long
        if is_last or 4 * num_staged * seconds > seconds_left:
            break
    return costs


def _seconds_of(costs: Mapping[int, float], num_tokens: int) -> float:
    """Seconds of a batch that was not measured, by a straight line through the smallest and the largest that were, or
    through nothing where one alone was."""
    known = costs if len(costs) > 1 else {0: 0.0, **costs}
    (least, quickest), (most, slowest) = min(known.items()), max(known.items())
    a_token = max(0.0, slowest - quickest) / (most - least)
    return slowest + (num_tokens - most) * a_token


def _target(rates: Mapping[int, float]) -> int:
    """The least size that has enough of the best rate; 0 where larger ones than were measured may be faster still."""
    least_rate = _ENOUGH * max(rates.values())
    target = min((size for size, rate in rates.items() if size >= _MIN_TARGET and rate >= least_rate), default=0)
    return target if target < max(rates) else 0


def _group(costs: Mapping[int, float], limits: EngineLimits) -> int:
    """The unique tokens of a batch of texts that share a prefix beyond which they are hardly faster: the more there
    are, the less its computing costs each, until larger batches are slower."""
    sizes = [min(size, limits.max_num_tokens) for size in _GROUPS]
    seconds = {size: max(_SHORTEST, costs.get(size) or _seconds_of(costs, size)) for size in sizes}
    rates = {size: max(0, size - _PREFIX) / seconds[size] for size in sizes}
    return min(size for size, rate in rates.items() if rate >= _ENOUGH * max(rates.values()))


def _equal_seqlens(limits: EngineLimits, num_tokens: int) -> list[int]:
    """Sequences that come to this many tokens, or as near as the limits allow."""
    seqlen = min(_SEQLEN, limits.max_seqlen)
    num_seqs = min(num_tokens, limits.max_num_tokens) // seqlen
    return [seqlen] * max(1, min(num_seqs, limits.max_num_seqs))


def _run(engine: Engine, seqlens: list[int], num_batches: int = 1) -> float:
    """Seconds of one batch of arbitrary ids on each stream; the mean of several, one behind the other."""
    batch, collected = _batch(engine, seqlens), []
    began = time.perf_counter()
    for number in range(engine.limits.streams * num_batches):
        if number >= engine.limits.depth:
            collected.append(engine.collect())
        engine.submit(batch)
    while len(collected) < engine.limits.streams * num_batches:
        collected.append(engine.collect())
    seconds = (time.perf_counter() - began) / num_batches
    for _, results in collected:
        if isinstance(results, EngineError):
            raise ModelError(f"the warm-up batch failed: {results}")
        _check(engine, results, num_seqs=len(seqlens))
    return max(seconds, 1e-6)


def _batch(engine: Engine, seqlens: list[int]) -> Batch:
    cu_seqlens: NDArray[np.int32] = np.cumsum([0, *seqlens], dtype=np.int32)
    token_ids = np.arange(cu_seqlens[-1], dtype=np.int32) % engine.info.vocab_size
    return Batch(engine.info.name, main_output(engine.info.outputs), token_ids, cu_seqlens)


def _check(engine: Engine, results: Results, *, num_seqs: int) -> None:
    for kind, rows in results.items():
        if kind is OutputKind.POOLED and rows.values.shape != (num_seqs, engine.info.dimensions):
            raise ModelError(
                f"the model gives rows of shape {rows.values.shape}, not {(num_seqs, engine.info.dimensions)}"
            )
        if not np.isfinite(rows.values).all():
            raise not_finite(engine.info.engine, engine.info.dtype)


class Canary:
    """The batch, its rows, and how much they may differ."""

    def __init__(self, engine: Engine, *, tokens_per_second: float = 0.0) -> None:
        """Computes it for the first time. The engine must be warm and idle. Raises ModelError if that fails.

        tokens_per_second: what the warm-up measured; 0 = not known.
        """
        takes_long = sum(_SEQLENS) > _MAX_CANARY_SECONDS * tokens_per_second > 0
        seqlens = [min(seqlen, engine.limits.max_seqlen) for seqlen in (_SHORTER if takes_long else _SEQLENS)]
        self.batch = _batch(engine, seqlens)
        results = compute(engine, self.batch)
        if isinstance(results, EngineError):
            raise ModelError(f"the canary failed: {results}")
        self._expected = results
        self._tolerance = max(_MIN_TOLERANCE, TOLERANCE.get(engine.info.dtype, _MAX_TOLERANCE))

    def judge(self, results: Results | EngineError) -> EngineError | None:
        """The fault in the rows of a later run; None if they are as they were."""
        if isinstance(results, EngineError):
            return EngineError(results.kind, f"the canary failed: {results}")
        for kind, expected in self._expected.items():
            found, right = comparable(kind, results[kind], expected)  # of sparse rows a weight may have become zero
            scale = float(np.abs(right).max(initial=0)) or 1.0
            difference = largest_difference(found, right, scale=scale)
            if not difference <= self._tolerance:
                what = f"the canary's {kind.name} rows differ by {difference:.3g} of their largest value"
                return EngineError(EngineErrorKind.FAILED, f"{what} from those that the engine gave at its start")
        return None
