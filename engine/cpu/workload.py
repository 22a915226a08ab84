"""The mini-batches of all batches in an engine, in order, for the threads that compute them.

One batch is spread over all streams, so to the rest of the server they are one stream as fast as the machine. A small
batch is finished soon, and the slowdown of streams by each other need not be estimated. A stream that has finished its
share begins with the next batch in the engine; it is idle only if there is none. The alternative, one batch for each
stream, leaves cores idle whenever there are fewer batches than cores.

Mini-batches of urgent batches are taken before all others, so a query waits until one stream has finished the
mini-batch that it is computing, however much other work is in the engine.

A sequence of moderate length that is alone in the engine is computed on all cores at once, with no other work beside
it, because threads that wait for each other are slow when other threads use the same cores. The thread that brings it
computes it: to wake another one would take longer than a small model needs.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.cpu.minibatch import MAX_PADDED_TOKENS, MiniBatch
from engine.types import ROWS_OF_TOKENS, Batch, EngineError, OutputKind, Results, Rows

# A longer sequence uses one core, so that later requests have the others.
MAX_WIDE_TOKENS = 1024


@dataclass(slots=True)
class Job:
    """A batch and its rows so far. Each thread writes only the rows of its own mini-batches."""

    ticket: int
    batch: Batch
    mini_batches: list[MiniBatch]
    dimensions: Mapping[OutputKind, int]  # of a row
    error: EngineError | None = None
    values: dict[OutputKind, NDArray[np.float32]] = field(init=False)  # [B, D], or of all tokens [T, D]
    entries: list[NDArray[np.float32]] = field(init=False)  # SPARSE, [n, 2] of each sequence
    num_left: int = field(init=False)  # unfinished mini-batches

    def __post_init__(self) -> None:
        of_tokens, of_seqs = self.batch.num_tokens, self.batch.num_seqs
        self.values = {
            kind: np.empty((of_tokens if kind & ROWS_OF_TOKENS else of_seqs, self.dimensions[kind]), np.float32)
            for kind in self.batch.outputs & ~OutputKind.SPARSE
        }
        self.entries = [np.empty((0, 2), np.float32)] * of_seqs
        self.num_left = len(self.mini_batches)

    def put(
        self, kind: OutputKind, mini_batch: MiniBatch, rows: NDArray[np.float32] | list[NDArray[np.float32]]
    ) -> None:
        """Store rows of a mini-batch, as made by engine.cpu.outputs."""
        if isinstance(rows, list):
            for number, of_one in zip(mini_batch.numbers.tolist(), rows, strict=True):
                self.entries[number] = of_one
            return
        places = mini_batch.index[mini_batch.is_token] if kind & ROWS_OF_TOKENS else mini_batch.numbers
        assert rows.shape == (len(places), self.dimensions[kind]), rows.shape
        self.values[kind][places] = rows

    @property
    def results(self) -> Results | EngineError:
        """The rows of the whole batch, or its error."""
        if self.error is not None:
            return self.error
        offsets = self.batch.cu_seqlens
        found = {kind: Rows(values, offsets if kind & ROWS_OF_TOKENS else None) for kind, values in self.values.items()}
        if OutputKind.SPARSE in self.batch.outputs:
            bounds = np.cumsum([0, *map(len, self.entries)], dtype=np.int32)
            found[OutputKind.SPARSE] = Rows(np.concatenate(self.entries), bounds)
        return found


@dataclass(frozen=True, slots=True)
class Task:
    """A mini-batch to compute."""

    job: Job
    mini_batch: MiniBatch

    @property
    def is_long(self) -> bool:
        """Whether it is a sequence that is longer than a mini-batch usually is."""
        return self.mini_batch.index.size > MAX_PADDED_TOKENS


class Workload:
    """A queue of mini-batches, safe for several threads."""

    def __init__(self) -> None:
        self._urgent: deque[Task] = deque()
        self._others: deque[Task] = deque()
        self._num_open = 0  # unfinished jobs
        self._one_is_alone = False
        self._is_closed = False
        self._changed = threading.Condition()  # guards all of the above

    def put(self, job: Job) -> None:
        """Add a job."""
        with self._changed:
            self._num_open += 1
            waiting = self._urgent if job.batch.is_urgent else self._others
            waiting.extend(Task(job, mini_batch) for mini_batch in job.mini_batches)
            self._changed.notify_all()

    def begin_alone(self) -> bool:
        """Whether there is no other work; then `take` waits until `end_alone`."""
        with self._changed:
            self._one_is_alone = not self._num_open and not self._is_closed
            return self._one_is_alone

    def end_alone(self) -> None:
        """Let other work be taken."""
        with self._changed:
            self._one_is_alone = False
            if self._urgent or self._others or self._is_closed:  # waking threads for nothing takes their cores
                self._changed.notify_all()

    def take(self, *, takes_long: bool = True) -> Task | None:
        """Wait for a mini-batch, an urgent one if there is one; None when the workload is closed and has no more.

        takes_long: whether this may be a sequence that is longer than a mini-batch usually is.
        """
        with self._changed:
            while True:
                if not self._one_is_alone:
                    for waiting in (self._urgent, self._others):
                        for number, task in enumerate(waiting):
                            if takes_long or not task.is_long:
                                del waiting[number]
                                return task
                    if self._is_closed:
                        return None
                self._changed.wait()

    def done(self, task: Task) -> bool:
        """Mark a task as finished; whether it was the last of its job."""
        with self._changed:
            task.job.num_left -= 1
            self._num_open -= not task.job.num_left
            return not task.job.num_left

    def close(self) -> None:
        """End the threads once the waiting mini-batches are computed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
