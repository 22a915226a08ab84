"""The `transformers` engine: any architecture of the library on the CPU, one batch at a time in a thread of its own.

Knows batches and rows; how a model is run is `forward`'s, whether packed or padded `selftest`'s.
"""

import queue
import threading
from typing import Any

import torch

from engine import model_folder
from engine.model_folder import ModelFolder
from engine.transformers.forward import Forward
from engine.transformers.loading import DTYPES, load_model, one_line
from engine.transformers.pooling import pool
from engine.transformers.selftest import choose_forward
from engine.types import (
    Batch,
    EngineClosed,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    ModelInfo,
    OutputKind,
    Results,
    Rows,
)

_DEPTH = 2  # one computes while the next waits
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


class TransformersEngine:
    """See engine.types.Engine. Gives pooled rows, before a final Normalize."""

    def __init__(self, forward: Forward, *, info: ModelInfo, limits: EngineLimits, num_threads: int) -> None:
        self.info = info
        self.limits = limits
        self._forward = forward
        self._num_threads = num_threads
        self._slots = threading.Semaphore(limits.depth)
        self._submitted: queue.SimpleQueue[tuple[int, Batch] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[int, Results | EngineError] | None] = queue.SimpleQueue()
        self._num_submitted = 0
        threading.Thread(target=self._compute_forever, name="compute", daemon=True).start()

    def submit(self, batch: Batch) -> int:
        """See engine.types.Engine."""
        self._slots.acquire()
        self._num_submitted += 1
        self._submitted.put((self._num_submitted, batch))
        return self._num_submitted

    def collect(self) -> tuple[int, Results | EngineError]:
        """See engine.types.Engine."""
        finished = self._finished.get()
        if finished is None:
            self._finished.put(None)  # for whoever asks again
            raise EngineClosed
        self._slots.release()
        return finished

    def close(self) -> None:
        """See engine.types.Engine."""
        self._submitted.put(None)

    def _compute_forever(self) -> None:
        if self._num_threads:
            torch.set_num_threads(self._num_threads)  # holds for the thread that calls it
        while (submitted := self._submitted.get()) is not None:
            ticket, batch = submitted
            self._finished.put((ticket, self._answer(batch)))
        self._finished.put(None)

    def _answer(self, batch: Batch) -> Results | EngineError:
        try:
            return self._compute(batch)
        except Exception as error:
            return _engine_error(error)

    def _compute(self, batch: Batch) -> Results:
        assert batch.outputs is OutputKind.POOLED, batch.outputs
        assert (batch.cu_seqlens[1:] > batch.cu_seqlens[:-1]).all(), "a sequence without tokens"
        rows = pool(self._forward(batch), torch.tensor(batch.cu_seqlens).long(), pooling=self.info.pooling)
        return {OutputKind.POOLED: Rows(rows.numpy())}


def _engine_error(error: Exception) -> EngineError:
    is_memory = isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
    return EngineError(EngineErrorKind.OUT_OF_MEMORY if is_memory else EngineErrorKind.FAILED, one_line(error))


def load(*, name: str, reason: str, options: dict[str, Any]) -> TransformersEngine:
    """options: path, device, dtype, pooling (None = as the folder has it), max_num_tokens, max_num_seqs and perhaps
    num_threads, for one batch (0 = torch's own choice). Raises ModelError."""
    if options["device"] != "cpu":
        raise ModelError(f"the transformers engine runs on the CPU, not on {options['device']!r}")
    if options["dtype"] not in DTYPES:
        raise ModelError(f"--dtype {options['dtype']!r} is not one of {', '.join(DTYPES)}")
    dtype = DTYPES[options["dtype"]]
    folder = model_folder.read(options["path"], pooling=options["pooling"])
    choice = choose_forward(load_model(folder, dtype=dtype), folder)
    info = _info(folder, name=name, reason=reason, dtype=dtype, note=choice.note)
    limits = EngineLimits(
        max_num_tokens=max(options["max_num_tokens"], folder.max_seqlen),
        max_num_seqs=options["max_num_seqs"],
        max_seqlen=folder.max_seqlen,
        depth=_DEPTH,
    )
    return TransformersEngine(choice.forward, info=info, limits=limits, num_threads=options.get("num_threads", 0))


def _info(folder: ModelFolder, *, name: str, reason: str, dtype: torch.dtype, note: str) -> ModelInfo:
    return ModelInfo(
        name=name,
        engine="transformers",
        reason=reason,
        outputs=OutputKind.POOLED,
        dimensions=folder.hidden_size,
        max_seqlen=folder.max_seqlen,
        vocab_size=folder.vocab_size,
        pooling=folder.pooling,
        normalize=folder.normalize,
        dtype=str(dtype).removeprefix("torch."),
        device="cpu",
        architecture=folder.architecture,
        notes=(note, *folder.notes),
    )
