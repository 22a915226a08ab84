"""Base class of engines that compute a batch in the thread that collects it. Knows no model."""

import queue
import threading
from abc import ABC, abstractmethod

from engine.machine.failures import engine_error
from engine.types import Batch, EngineClosed, EngineError, EngineLimits, ModelInfo, Results


class BlockingEngine(ABC):
    """See engine.types.Engine. Batches finish in the order in which they were submitted."""

    def __init__(self, *, info: ModelInfo, limits: EngineLimits) -> None:
        self.info = info
        self.limits = limits
        self._slots = threading.Semaphore(limits.depth)
        self._submitted: queue.SimpleQueue[tuple[int, Batch] | None] = queue.SimpleQueue()
        self._num_submitted = 0

    def submit(self, batch: Batch) -> int:
        """See engine.types.Engine."""
        self._slots.acquire()
        self._num_submitted += 1
        self._submitted.put((self._num_submitted, batch))
        return self._num_submitted

    def collect(self) -> tuple[int, Results | EngineError]:
        """See engine.types.Engine."""
        submitted = self._submitted.get()
        if submitted is None:
            self._submitted.put(None)  # for the next call
            raise EngineClosed
        ticket, batch = submitted
        answer = self._answer(batch)
        self._slots.release()
        return ticket, answer

    def close(self) -> None:
        """See engine.types.Engine."""
        self._submitted.put(None)

    def _answer(self, batch: Batch) -> Results | EngineError:
        try:
            return self._compute(batch)
        except EngineError as error:
            return error
        except Exception as error:
            return engine_error(error)

    @abstractmethod
    def _compute(self, batch: Batch) -> Results:
        """The rows of a batch. If it raises, the batch fails."""
