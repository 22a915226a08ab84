"""The queue of submitted batches, and the base class of engines that compute a batch in the thread that collects it."""

import queue
import threading
from abc import ABC, abstractmethod

from engine.machine.failures import engine_error
from engine.types import Batch, EngineClosed, EngineError, EngineLimits, ModelInfo, Results


class SubmittedBatches:
    """Batches with their tickets, in the order of submitting; at most `depth` until they are collected."""

    def __init__(self, depth: int) -> None:
        self._slots = threading.Semaphore(depth)
        self._batches: queue.SimpleQueue[tuple[int, Batch] | None] = queue.SimpleQueue()
        self._num_submitted = 0

    def put(self, batch: Batch) -> int:
        """Put a batch; its ticket. Blocks while `depth` batches are in the engine. Only one thread may call it."""
        self._slots.acquire()
        self._num_submitted += 1
        self._batches.put((self._num_submitted, batch))
        return self._num_submitted

    def get(self) -> tuple[int, Batch] | None:
        """The next batch, or None: one for each call of `end`. Blocks until there is one of them."""
        return self._batches.get()

    def collected(self) -> None:
        """One batch has left the engine."""
        self._slots.release()

    def end(self) -> None:
        """Make one call of `get` return None after the batches before it."""
        self._batches.put(None)


class BlockingEngine(ABC):
    """See engine.types.Engine. Batches finish in the order in which they were submitted."""

    def __init__(self, *, info: ModelInfo, limits: EngineLimits) -> None:
        self.info = info
        self.limits = limits
        self._submitted = SubmittedBatches(limits.depth)

    def submit(self, batch: Batch) -> int:
        """See engine.types.Engine."""
        return self._submitted.put(batch)

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        """See engine.types.Engine. The thread that collects computes."""
        return None

    def collect(self) -> tuple[int, Results | EngineError]:
        """See engine.types.Engine."""
        submitted = self._submitted.get()
        if submitted is None:
            self._submitted.end()  # for the next call
            raise EngineClosed
        ticket, batch = submitted
        answer = self._answer(batch)
        self._submitted.collected()
        return ticket, answer

    def close(self) -> None:
        """See engine.types.Engine."""
        self._submitted.end()

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
