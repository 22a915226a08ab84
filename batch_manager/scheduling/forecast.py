"""When a model's engines will be done with what they hold, and what waits but would be late even in the next batch.

By the measured rate: a batch takes its tokens over the rate of a stream, from the moment a stream took it.
"""

import heapq
import math
from collections.abc import Sequence
from itertools import islice

from batch_manager.scheduling.batches import Batch, Request
from batch_manager.scheduling.model import Model
from wire.vocabulary import RequestClass


def note_begun(model: Model, now: float) -> None:
    """By now each stream computes the oldest batch that it could. To be called after every event."""
    for engine in model.engines:
        for lane in model.lanes if engine.batches else ():
            for batch in islice(engine.lane(lane), engine.limits.streams):
                if batch.began == math.inf:
                    batch.began = now


def free_at(model: Model, request_class: RequestClass, now: float) -> float:
    """When the engines will be done with what goes before new work of a class, in time.monotonic() seconds."""
    rate, lane = model.rate.tokens_per_second, model.lane_ahead(request_class)
    if not rate:
        return now
    seconds = 0.0
    for engine in model.engines:
        if engine.batches:
            seconds += sum(_seconds_left(engine.lane(lane), rate, now))
    return now + seconds * rate / model.tokens_per_second if seconds else now


def batch_seconds(model: Model, now: float) -> float:
    """How long the largest batch computes that would be sent now; 0 where that is not known."""
    if not model.engines or not model.rate.tokens_per_second:
        return 0.0
    limits = model.engines[0].limits
    return model.max_tokens(limits, model.lanes[-1], now) / model.rate.tokens_per_second


def take_hopeless(model: Model, now: float, *, memory: float) -> list[Request]:
    """Waiting requests whose deadline comes before the next batch would be done; they are no longer watched.

    None while no engine has room for a batch. An engine that idles, and did for so many seconds (`memory`), is tried
    instead: else a rate that was measured in a bad moment would be believed for ever.
    """
    hopeless = []
    for request_class, deadlines in enumerate(model.deadlines):
        if deadlines.next < math.inf:
            hopeless += deadlines.take_due(_answered_at(model, RequestClass(request_class), now, memory))
    return hopeless


def _answered_at(model: Model, request_class: RequestClass, now: float, memory: float) -> float:
    """When a batch would be done that is sent for a class now; -inf where there is no saying, or no room for one."""
    rate, lane = model.rate.tokens_per_second, request_class if len(model.lanes) > 1 else None
    following = model.next_engine(lane, now) if rate else None
    if following is None:
        return -math.inf
    engine, num_tokens = following
    if not engine.batches and now - model.last_batch_at >= memory:
        return -math.inf
    ahead = engine.lane(model.lane_ahead(request_class))
    return now + _seconds_until_free(_seconds_left(ahead, rate, now), engine.limits.streams) + num_tokens / rate


def _seconds_until_free(seconds: list[float], streams: int) -> float:
    """Until a stream would take another batch, behind batches that take so many seconds each."""
    ends, staged = seconds[:streams], seconds[streams:]
    if len(ends) < streams:
        return 0.0
    heapq.heapify(ends)
    for one in staged:
        heapq.heapreplace(ends, ends[0] + one)
    return ends[0]


def _seconds_left(batches: Sequence[Batch], rate: float, now: float) -> list[float]:
    """Of each batch. One that is late counts as nearly done."""
    return [
        max(0.0, (batch.num_tokens + batch.passed_tokens) / rate - max(0.0, now - batch.began)) for batch in batches
    ]
