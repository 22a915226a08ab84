"""Queries beside bulk through an engine, without a GPU: who submits what, and when."""

import dataclasses
import queue
import threading
from types import SimpleNamespace
from typing import cast

from benchmarks.gpu import beside
from benchmarks.gpu.random_models import batch_of
from benchmarks.gpu.shapes import TINY_BERT
from engine.types import Batch, Engine, EngineLimits, OutputKind
from tests.server_e2e.running import PATIENCE


class OneByOne:
    """An engine of no rows that answers in the order of submission."""

    def __init__(self, seconds: float) -> None:
        self.limits = SimpleNamespace(depth=2)
        self.submitted: list[Batch] = []
        self.most_bulk = 0
        self._seconds, self._never = seconds, threading.Event()
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._num_collected = 0

    def submit(self, batch: Batch) -> int:
        self.submitted.append(batch)
        inside = self.submitted[self._num_collected :]
        self.most_bulk = max(self.most_bulk, sum(not one.is_urgent for one in inside))
        self._waiting.put(len(self.submitted))
        return len(self.submitted)

    def collect(self) -> tuple[int, dict[OutputKind, object]]:
        ticket = self._waiting.get(timeout=PATIENCE)
        self._never.wait(self._seconds)
        self._num_collected = ticket
        return ticket, {}


def test_queries_come_by_the_clock_while_bulk_fills_the_engine() -> None:
    bulk, query = batch_of(TINY_BERT, [8, 8]), dataclasses.replace(batch_of(TINY_BERT, [4]), is_urgent=True)
    traffic, engine = beside.Traffic(bulk, query, seconds=0.5), OneByOne(0.002)
    assert beside._run(cast(Engine, engine), traffic) >= 0.5
    assert traffic.done.keys() >= traffic.due.keys()
    assert len(engine.submitted) == len(traffic.done) == traffic.num_bulk + len(traffic.due)
    assert 5 <= len(traffic.due) <= 60  # 50 a second, by chance
    assert traffic.num_bulk > len(traffic.due)
    assert engine.most_bulk == engine.limits.depth
    assert all(traffic.done[ticket] > due for ticket, due in traffic.due.items())


def test_batches_are_sealed_as_the_server_seals_them() -> None:
    limits = EngineLimits(max_num_tokens=4096, max_num_seqs=8, max_seqlen=512, token_buckets=(256, 512, 2048, 4096))
    sealed = [beside.sealed(limits, rate, 0.01) for rate in (1e3, 80_000.0, 1e9)]
    assert sealed == [256, 512, 4096]
