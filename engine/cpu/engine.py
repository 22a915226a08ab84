"""The engine around an executor: threads compute mini-batches, and rows are put in the order of their batch.

`workload` decides which mini-batch comes next.
"""

import queue
import threading
import time
from collections.abc import Mapping

from engine.cpu.executor import Executor, Run
from engine.cpu.minibatch import Pace, alone, cut, padded
from engine.cpu.outputs import Makers
from engine.cpu.workload import MAX_WIDE_TOKENS, Job, Task, Workload
from engine.machine.failures import engine_error
from engine.types import Batch, EngineClosed, EngineError, EngineLimits, ModelInfo, OutputKind, Results

DEPTH = 2  # streams that have finished their share of one batch begin with the next


class CompiledEngine:
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
        num_long_streams: int | None = None,
    ) -> None:
        """`sizes`: numbers in a row of each output but SPARSE. `num_long_streams`: the streams that compute sequences
        of more tokens than a mini-batch has elsewhere; None = all.
        """
        self.info = info
        self.limits = limits
        self._executor = executor
        self._makers = makers
        self._sizes = sizes
        self._pad_id = pad_id
        # with one core its stream is all cores, and nothing else is computed beside what is alone
        self._alone = executor.wide or (executor.streams[0] if len(executor.streams) == 1 else None)
        self._slots = {is_urgent: threading.Semaphore(limits.depth) for is_urgent in (False, True)}
        self._workload = Workload()
        self._finished: queue.SimpleQueue[tuple[int, Results | EngineError] | None] = queue.SimpleQueue()
        self._num_submitted = 0
        self._pace = Pace()
        self._threads = [
            threading.Thread(
                target=self._compute_forever, args=(run, num_long_streams is None or number < num_long_streams)
            )
            for number, run in enumerate(executor.streams)
        ]
        for number, thread in enumerate(self._threads):
            thread.name, thread.daemon = f"stream {number}", True
            thread.start()

    def submit(self, batch: Batch) -> int:
        """See engine.types.Engine."""
        assert batch.outputs in self.info.outputs, batch.outputs
        self._slots[batch.is_urgent].acquire()
        self._num_submitted += 1
        longest, giving_way = self.limits.max_seqlen, self._pace.max_giving_way
        mini_batches = cut(batch, num_streams=len(self._threads), max_seqlen=longest, max_giving_way=giving_way)
        self._workload.put(Job(self._num_submitted, batch, mini_batches, self._sizes))
        return self._num_submitted

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        """See engine.types.Engine."""
        run = self._alone
        if run is None or batch.num_seqs != 1 or batch.num_tokens > MAX_WIDE_TOKENS or not self._workload.begin_alone():
            return None
        mini_batch = alone(batch, max_seqlen=self.limits.max_seqlen, multiple=self._executor.multiple_alone)
        job = Job(0, batch, [mini_batch], self._sizes)
        self._attempt(Task(job, mini_batch), run)
        self._workload.end_alone()
        return job.results

    def collect(self) -> tuple[int, Results | EngineError]:
        """See engine.types.Engine."""
        finished = self._finished.get()
        if finished is None:
            self._finished.put(None)  # for the next call
            raise EngineClosed
        return finished

    def close(self) -> None:
        """See engine.types.Engine."""
        self._workload.close()
        threading.Thread(target=self._end, name="end", daemon=True).start()

    def _end(self) -> None:
        for thread in self._threads:
            thread.join()
        self._finished.put(None)

    def _compute_forever(self, run: Run, takes_long: bool) -> None:
        while (task := self._workload.take(takes_long=takes_long)) is not None:
            job = task.job
            if job.error is None:  # the rest of a failed batch is not needed
                self._attempt(task, run)
            if self._workload.done(task):
                self._finished.put((job.ticket, job.results))
                self._slots[job.batch.is_urgent].release()

    def _attempt(self, task: Task, run: Run) -> None:
        try:
            self._compute(task, run)
        except Exception as error:
            task.job.error = engine_error(error)

    def _compute(self, task: Task, run: Run) -> None:
        job, mini_batch = task.job, task.mini_batch
        inputs = padded(job.batch, mini_batch, pad_id=self._pad_id)
        began = time.perf_counter()
        rows = run({name: inputs[name] for name in self._executor.input_names})
        if run is not self._executor.wide:
            self._pace.observe(mini_batch.index.size, time.perf_counter() - began)
        for kind in job.batch.outputs:
            job.put(kind, mini_batch, self._makers[kind](rows, job.batch, mini_batch))
