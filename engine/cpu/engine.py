"""The engine around a compiled model: threads compute mini-batches, and rows are put in the order of their batch.

`Workload` decides which mini-batch comes next. One batch is spread over all streams, so to the rest of the server they
are one stream as fast as the machine. A small batch is finished soon, and the slowdown of streams by each other need
not be estimated. A stream that has finished its share begins with the next batch in the engine; it is idle only if
there is none. The alternative, one batch for each stream, leaves cores idle where there are fewer batches than cores.

Mini-batches of urgent batches are taken before all others, so a query waits until one stream has finished the
mini-batch that it is computing, however much other work is in the engine.

A sequence of moderate length that is alone in the engine is computed on all cores at once where that is faster
(engine.cpu.all_cores), with no other work beside it, because threads that wait for each other are slow when other
threads use the same cores. The thread that brings it computes it, on one core too if that takes a moment: to wake
another one would take longer than a small model needs.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from engine.cpu.lora import LORA
from engine.cpu.minibatch import MAX_PADDED_TOKENS, MiniBatch, StreamSpeed, alone, cut, padded
from engine.cpu.openvino import Executor, Run
from engine.cpu.outputs import Makers
from engine.machine.failures import engine_error
from engine.types import (
    ROWS_OF_TOKENS,
    Batch,
    EngineClosed,
    EngineError,
    EngineLimits,
    ModelInfo,
    OutputKind,
    Results,
    Rows,
    kinds_in,
)

# A longer sequence uses one core, so that later requests have the others.
MAX_WIDE_TOKENS = 1024
# The longest that the thread that takes batches computes on one core: others could have the other cores meanwhile.
MAX_ALONE_SECONDS = 0.012


@dataclass(slots=True)
class PendingBatch:
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
            for kind in kinds_in(self.batch.outputs)
            if kind is not OutputKind.SPARSE
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
class PendingMiniBatch:
    """A mini-batch to compute."""

    pending: PendingBatch
    mini_batch: MiniBatch

    @property
    def is_long(self) -> bool:
        """Whether it is a sequence that is longer than a mini-batch usually is."""
        return self.mini_batch.index.size > MAX_PADDED_TOKENS


class Workload:
    """A queue of mini-batches, safe for several threads."""

    def __init__(self) -> None:
        self._urgent: deque[PendingMiniBatch] = deque()
        self._others: deque[PendingMiniBatch] = deque()
        self._num_open = 0  # unfinished batches
        self._one_is_alone = False
        self._is_closed = False
        self._lock = threading.Lock()  # guards all of the above
        self._changed = threading.Condition(self._lock)

    def put(self, pending: PendingBatch) -> None:
        """Add a batch."""
        with self._changed:
            self._num_open += 1
            waiting = self._urgent if pending.batch.is_urgent else self._others
            waiting.extend(PendingMiniBatch(pending, mini_batch) for mini_batch in pending.mini_batches)
            self._changed.notify_all()

    def begin_alone(self) -> bool:
        """Whether there is no other work; then `take` waits until `end_alone`."""
        with self._lock:
            self._one_is_alone = not self._num_open and not self._is_closed
            return self._one_is_alone

    def end_alone(self) -> None:
        """Let other work be taken."""
        with self._lock:
            self._one_is_alone = False
            if self._urgent or self._others or self._is_closed:  # waking threads for nothing takes their cores
                self._changed.notify_all()

    def take(self, *, takes_long: bool = True) -> PendingMiniBatch | None:
        """Wait for a mini-batch, an urgent one if there is one; None when the workload is closed and has no more.

        takes_long: whether this may be a sequence that is longer than a mini-batch usually is.
        """
        with self._changed:
            while True:
                if not self._one_is_alone:
                    for waiting in (self._urgent, self._others):
                        for number, item in enumerate(waiting):
                            if takes_long or not item.is_long:
                                del waiting[number]
                                return item
                    if self._is_closed:
                        return None
                self._changed.wait()

    def done(self, item: PendingMiniBatch) -> bool:
        """Mark a mini-batch as finished; whether it was the last of its batch."""
        with self._lock:
            item.pending.num_left -= 1
            self._num_open -= not item.pending.num_left
            return not item.pending.num_left

    def close(self) -> None:
        """End the threads once the waiting mini-batches are computed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


DEPTH = 2  # streams that have finished their share of one batch begin with the next


class OpenVinoEngine:
    """See engine.types.Engine."""

    def __init__(
        self,
        executor: Executor,
        makers: Makers,
        *,
        info: ModelInfo,
        limits: EngineLimits,
        pad_id: int,
        sizes: Mapping[OutputKind, int],
    ) -> None:
        """`sizes`: numbers in a row of each output but SPARSE."""
        self.info = info
        self.limits = limits
        self._executor = executor
        self._makers = makers
        self._sizes = sizes
        self._pad_id = pad_id
        self._slots = {is_urgent: threading.Semaphore(limits.depth) for is_urgent in (False, True)}
        self._workload = Workload()
        self._finished: queue.SimpleQueue[tuple[int, Results | EngineError] | None] = queue.SimpleQueue()
        self._num_submitted = 0
        self._speed = StreamSpeed()
        num_long = executor.num_long_streams
        self._threads = [
            threading.Thread(target=self._compute_forever, args=(run, num_long is None or number < num_long))
            for number, run in enumerate(executor.streams)
        ]
        for number, thread in enumerate(self._threads):
            thread.name, thread.daemon = f"stream {number}", True
            thread.start()

    def submit(self, batch: Batch) -> int:
        assert batch.outputs in self.info.outputs, batch.outputs
        self._slots[batch.is_urgent].acquire()
        self._num_submitted += 1
        if batch.shared is not None and not self.info.shares_prefixes:
            batch = replace(batch, shared=None)
        longest, giving_way = self.limits.max_seqlen, self._speed.max_giving_way
        mini_batches = cut(
            batch,
            num_streams=len(self._threads),
            max_seqlen=longest,
            max_giving_way=giving_way,
            has_loras=LORA in self._executor.input_names,
        )
        self._workload.put(PendingBatch(self._num_submitted, batch, mini_batches, self._sizes))
        return self._num_submitted

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        run = self._run_alone(batch.num_tokens) if batch.num_seqs == 1 else None
        if run is None or not self._workload.begin_alone():
            return None
        mini_batch = alone(batch, max_seqlen=self.limits.max_seqlen, multiple=self._executor.multiple_alone)
        try:
            rows = self._run(run, batch, mini_batch)
            made = {kind: self._makers[kind](rows, batch, mini_batch) for kind in kinds_in(batch.outputs)}
        except Exception as error:
            return engine_error(error)
        finally:
            self._workload.end_alone()
        return {kind: _of_one(kind, rows, batch) for kind, rows in made.items()}

    def _run_alone(self, num_tokens: int) -> Run | None:
        """What computes so long a sequence at once; None = one of the streams does, behind others."""
        executor = self._executor
        if num_tokens > MAX_WIDE_TOKENS:
            return None
        if executor.wide is not None and num_tokens >= (executor.least_wide or 0):
            return executor.wide
        is_soon_done = self._speed.seconds_of(num_tokens) <= MAX_ALONE_SECONDS
        return executor.streams[0] if is_soon_done or len(executor.streams) == 1 else None

    def collect(self) -> tuple[int, Results | EngineError]:
        finished = self._finished.get()
        if finished is None:
            self._finished.put(None)  # for the next call
            raise EngineClosed
        return finished

    def close(self) -> None:
        self._workload.close()
        threading.Thread(target=self._end, name="end", daemon=True).start()

    def _end(self) -> None:
        for thread in self._threads:
            thread.join()
        self._finished.put(None)

    def _compute_forever(self, run: Run, takes_long: bool) -> None:
        while (item := self._workload.take(takes_long=takes_long)) is not None:
            pending = item.pending
            if pending.error is None:  # the rest of a failed batch is not needed
                self._attempt(item, run)
            if self._workload.done(item):
                self._finished.put((pending.ticket, pending.results))
                self._slots[pending.batch.is_urgent].release()

    def _attempt(self, item: PendingMiniBatch, run: Run) -> None:
        try:
            rows = self._run(run, item.pending.batch, item.mini_batch)
            for kind in kinds_in(item.pending.batch.outputs):
                made = self._makers[kind](rows, item.pending.batch, item.mini_batch)
                item.pending.put(kind, item.mini_batch, made)
        except Exception as error:
            item.pending.error = engine_error(error)

    def _run(self, run: Run, batch: Batch, mini_batch: MiniBatch) -> NDArray[np.float32]:
        inputs = padded(batch, mini_batch, self._executor.input_names, pad_id=self._pad_id)
        began = time.perf_counter()
        rows = run(inputs)
        if run is not self._executor.wide:
            self._speed.observe(mini_batch.num_computed, time.perf_counter() - began)
        return rows


def _of_one(kind: OutputKind, made: NDArray[np.float32] | list[NDArray[np.float32]], batch: Batch) -> Rows:
    """The rows of a batch of one sequence, as made by engine.cpu.outputs."""
    if isinstance(made, list):
        return Rows(made[0], np.array([0, len(made[0])], np.int32))
    return Rows(made, batch.cu_seqlens if kind & ROWS_OF_TOKENS else None)
