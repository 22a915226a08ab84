"""The `transformers` engine: any architecture of the library on the CPU, each batch in one thread.

Several threads of one core each rather than one batch on all cores: a team of threads waits at every layer for the one
whose core another process has just taken, so that beside a busy process it keeps a third of its speed; threads that do
not wait for each other lose what was taken and no more. For a lone query of 10 tokens a team of two saved a fifth of
its time at best, and took three times the processor time for it.

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
from engine.transformers.selftest import Choice, choose_forward
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

_MAX_NUM_TOKENS = 16_384  # of a batch, where nobody says otherwise
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


class TransformersEngine:
    """See engine.types.Engine. Gives pooled rows, before a final Normalize, and the last hidden state of each token."""

    def __init__(self, forward: Forward, *, info: ModelInfo, limits: EngineLimits) -> None:
        self.info = info
        self.limits = limits
        self._forward = forward
        self._num_computing = limits.streams  # threads that are not known to have ended; for `collect` alone
        self._slots = threading.Semaphore(limits.depth)
        self._submitted: queue.SimpleQueue[tuple[int, Batch] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[tuple[int, Results | EngineError] | None] = queue.SimpleQueue()
        self._num_submitted = 0
        for stream in range(limits.streams):
            threading.Thread(target=self._compute_forever, name=f"compute {stream}", daemon=True).start()

    def submit(self, batch: Batch) -> int:
        """See engine.types.Engine."""
        self._slots.acquire()
        self._num_submitted += 1
        self._submitted.put((self._num_submitted, batch))
        return self._num_submitted

    def collect(self) -> tuple[int, Results | EngineError]:
        """See engine.types.Engine."""
        while self._num_computing:
            finished = self._finished.get()
            if finished is not None:
                self._slots.release()
                return finished
            self._num_computing -= 1
        raise EngineClosed

    def close(self) -> None:
        """See engine.types.Engine."""
        for _ in range(self.limits.streams):
            self._submitted.put(None)

    def _compute_forever(self) -> None:
        torch.set_num_threads(1)  # holds for the thread that calls it
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
        assert batch.outputs in self.info.outputs, batch.outputs
        assert (batch.cu_seqlens[1:] > batch.cu_seqlens[:-1]).all(), "a sequence without tokens"
        token_rows = self._forward(batch)
        results = {}
        if OutputKind.POOLED in batch.outputs:
            pooled = pool(token_rows, torch.tensor(batch.cu_seqlens).long(), pooling=self.info.pooling)
            results[OutputKind.POOLED] = Rows(pooled.numpy())
        if OutputKind.TOKENS in batch.outputs:
            results[OutputKind.TOKENS] = Rows(token_rows.float().numpy(), batch.cu_seqlens)
        return results


def _engine_error(error: Exception) -> EngineError:
    is_memory = isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)
    return EngineError(EngineErrorKind.OUT_OF_MEMORY if is_memory else EngineErrorKind.FAILED, one_line(error))


def load(*, name: str, reason: str, options: dict[str, Any]) -> TransformersEngine:
    """options: path, device, dtype, pooling (None = as the folder has it), max_num_tokens (None = the engine's choice),
    max_num_seqs and num_threads, which is how many batches are computed at a time. Raises ModelError."""
    if options["device"] != "cpu":
        raise ModelError(f"the transformers engine runs on the CPU, not on {options['device']!r}")
    if options["dtype"] not in DTYPES:
        raise ModelError(f"--dtype {options['dtype']!r} is not one of {', '.join(DTYPES)}")
    dtype = DTYPES[options["dtype"]]
    folder = model_folder.read(options["path"], pooling=options["pooling"])
    torch.set_num_threads(1)  # as the threads that compute, so that what is measured here holds for them
    choice = _prepare(folder, dtype)
    streams = options["num_threads"] if choice.is_reentrant else 1
    info = _info(folder, name=name, reason=reason, dtype=dtype, notes=choice.notes)
    limits = EngineLimits(
        max_num_tokens=max(options["max_num_tokens"] or _MAX_NUM_TOKENS, folder.max_seqlen),
        max_num_seqs=options["max_num_seqs"],
        max_seqlen=folder.max_seqlen,
        streams=streams,
        depth=streams + 1,
    )
    return TransformersEngine(choice.forward, info=info, limits=limits)


def _prepare(folder: ModelFolder, dtype: torch.dtype) -> Choice:
    model = load_model(folder, dtype=dtype)
    if dtype is not torch.float32:
        return choose_forward(model, folder)
    try:
        return choose_forward(model, folder, prepacks=True)
    except ModelError:  # perhaps only because a layer looks at the weights of another, which are no longer there
        return choose_forward(load_model(folder, dtype=dtype), folder)


def _info(folder: ModelFolder, *, name: str, reason: str, dtype: torch.dtype, notes: tuple[str, ...]) -> ModelInfo:
    return ModelInfo(
        name=name,
        engine="transformers",
        reason=reason,
        outputs=OutputKind.POOLED | OutputKind.TOKENS,
        dimensions=folder.hidden_size,
        max_seqlen=folder.max_seqlen,
        vocab_size=folder.vocab_size,
        pooling=folder.pooling,
        normalize=folder.normalize,
        dtype=str(dtype).removeprefix("torch."),
        device="cpu",
        architecture=folder.architecture,
        notes=(*notes, *folder.notes),
    )
