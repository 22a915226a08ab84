"""The `fused` engine: tickets, slots and the two threads around a runner. Imports no torch.

The device computes batches in the order in which they are started, so one that is started can't be overtaken any more.
Batches are started as they come, the next one while another computes, and the device never waits for the host. But one
that is to give way waits, packed, until the device has nothing left to do. An urgent batch that comes meanwhile is
started before it. The price is a short pause of the device before each such batch.
"""

import collections
import dataclasses
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.types import Batch, EngineClosed, EngineError, EngineLimits, ModelInfo, Results

if TYPE_CHECKING:
    from engine.fused.runner import Runner


@dataclass(slots=True)
class _BatchInSlot:
    """A batch inside the engine."""

    ticket: int
    slot: int
    is_urgent: bool
    gives_way: bool
    error: EngineError | None = None


class FusedEngine:
    """See engine.types.Engine. It has `depth` slots for urgent batches and `depth` for others."""

    def __init__(self, runner: "Runner", *, info: ModelInfo, limits: EngineLimits) -> None:
        self.info = info
        self.limits = limits
        self._runner = runner
        depth = limits.depth
        self._free_slots: dict[bool, queue.SimpleQueue[int]] = {False: queue.SimpleQueue(), True: queue.SimpleQueue()}
        for slot in range(2 * depth):
            self._free_slots[slot >= depth].put(slot)  # by urgency
        self._changed = threading.Condition()  # guards the three below, and is held while batches are started
        self._staged: list[_BatchInSlot] = []  # packed on the host, in the order of their start
        self._started: collections.deque[_BatchInSlot] = collections.deque()  # in the order of the device
        self._is_closed = False
        self._num_submitted = 0

    def submit(self, batch: Batch) -> int:
        slot = self._free_slots[batch.is_urgent].get()
        self._num_submitted += 1
        held = _BatchInSlot(self._num_submitted, slot, batch.is_urgent, batch.gives_way and not batch.is_urgent)
        if batch.shared is not None and not self.info.shares_prefixes:
            batch = dataclasses.replace(batch, shared=None)
        held.error = self._runner.stage(slot, batch)
        with self._changed:
            self._staged.append(held)
            self._staged.sort(key=lambda held: not held.is_urgent)
            self._start_staged()
            self._changed.notify()
        return held.ticket

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        return None  # a device is fed by the thread that collects

    def collect(self) -> tuple[int, Results | EngineError]:
        """A batch submitted after `close` is still computed and can be collected."""
        with self._changed:
            self._changed.wait_for(lambda: self._started or self._is_closed)
            if not self._started:
                raise EngineClosed
            held = self._started[0]
        answer = held.error or self._runner.finish(held.slot)
        with self._changed:
            self._started.popleft()
            self._start_staged()
        self._free_slots[held.is_urgent].put(held.slot)
        return held.ticket, answer

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _start_staged(self) -> None:
        """Start the next batches, as many as don't have to wait."""
        while self._staged and not (self._started and self._staged[0].gives_way):
            held = self._staged.pop(0)
            held.error = held.error or self._runner.start(held.slot)
            self._started.append(held)
