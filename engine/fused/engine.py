"""The `fused` engine: tickets, slots and the two threads around a runner. Imports torch only when it loads a model."""

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.types import Batch, EngineClosed, EngineError, EngineLimits, ModelInfo, Results

if TYPE_CHECKING:
    from engine.fused.runner.runner import Runner

logger = logging.getLogger("embedline.engine")


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
        """See engine.types.Engine. What is submitted after `close` is still computed, for whoever asks again."""
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


def load(*, name: str, reason: str, options: dict[str, Any]) -> FusedEngine:
    """options: path, device ("cpu" or "cuda:0", …), dtype, pooling (None = as the folder has it), max_num_tokens (None
    = 16384), max_num_seqs, and perhaps max_seqlen (None = as the folder has it), quantization ("none"), num_threads
    (of the CPU) and cache_dir (None = quantized weights are not kept).

    Raises ModelError with one line.
    """
    phases = Phases()
    with phases("import"):
        from engine.fused import loading
    loaded = loading.load(phases, name=name, reason=reason, options=options)
    logger.info("%s %s", name, phases)
    for note in loaded.engine.info.notes:
        logger.info("%s: %s", name, note)
    if options.get("quantization") == "fp8" and loaded.outcome is not None and loaded.outcome.reverted:
        num_plain, num_quantized = len(loaded.outcome.reverted), len(loaded.outcome.quantized)
        logger.warning(
            "%s: FP8 was asked for, and %d of %d layers stay plain", name, num_plain, num_plain + num_quantized
        )
    return loaded.engine


class Phases:
    """How long each part of loading took."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """What is in the `with` belongs to this part; may come more than once."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items())
        return f"loaded in {time.perf_counter() - self._began:.1f} s: {parts}"
