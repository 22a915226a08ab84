"""The `fused` engine: tickets, slots and the two threads around a runner. Imports no torch."""

import collections
import threading
from typing import TYPE_CHECKING

from engine.types import Batch, EngineClosed, EngineError, EngineLimits, ModelInfo, Results

if TYPE_CHECKING:
    from engine.fused.runner.runner import Runner


class FusedEngine:
    """See engine.types.Engine. Batches are finished in the order in which they were submitted.

    Ticket n has slot n modulo `depth`: it is free again once as many batches as that were collected.
    """

    def __init__(self, runner: "Runner", *, info: ModelInfo, limits: EngineLimits) -> None:
        self.info = info
        self.limits = limits
        self._runner = runner
        self._slots = threading.Semaphore(limits.depth)
        self._changed = threading.Condition()  # guards the two below
        self._inside: collections.deque[tuple[int, EngineError | None]] = collections.deque()
        self._is_closed = False
        self._num_submitted = 0

    def submit(self, batch: Batch) -> int:
        """See engine.types.Engine."""
        self._slots.acquire()
        self._num_submitted += 1
        ticket = self._num_submitted
        error = self._start(ticket % self.limits.depth, batch)
        with self._changed:
            self._inside.append((ticket, error))
            self._changed.notify()
        return ticket

    def collect(self) -> tuple[int, Results | EngineError]:
        """See engine.types.Engine. A batch submitted after `close` is still computed and can be collected."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside or self._is_closed)
            if not self._inside:
                raise EngineClosed
            ticket, error = self._inside.popleft()
        answer = error or self._finish(ticket % self.limits.depth)
        self._slots.release()
        return ticket, answer

    def close(self) -> None:
        """See engine.types.Engine."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _start(self, slot: int, batch: Batch) -> EngineError | None:
        try:
            self._runner.start(slot, batch)
        except EngineError as error:
            return error
        return None

    def _finish(self, slot: int) -> Results | EngineError:
        try:
            return self._runner.finish(slot)
        except EngineError as error:
            return error
