"""The `transformers` engine: any architecture of the library, on the CPU or a GPU, each batch in one thread.

On a GPU one thread computes, and the next batch waits. On the CPU several threads compute, one core and one batch each,
instead of one batch on all cores. With a batch on all cores, every layer waits for the slowest core, so another busy
process cuts the speed to a third; independent threads lose only the time that it takes. For a lone query of 10 tokens,
two cores save a fifth of the time at best, at three times the CPU time.

`forward` runs the model, and `selftest` chooses packed or padded.
"""

import dataclasses
import queue
import threading
from typing import Any

import torch
from transformers import PreTrainedModel

from engine.blocking import SubmittedBatches
from engine.machine.failures import engine_error, one_line
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder, read_with
from engine.rows.query_table import NOTE_OF_TABLE, QueryTable, query_table
from engine.transformers.forward import Forward, Makers, hiding
from engine.transformers.loading import load_model
from engine.transformers.lora import note_of, put_adapters
from engine.transformers.placement import Placement, check_fits, place
from engine.transformers.selftest import PADDED, ForwardChoice, SelftestCache, choose_forward
from engine.types import (
    Batch,
    EngineClosed,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    ModelInfo,
    OnStage,
    Results,
    untold,
)

_GPU_BATCHES: dict[str, Any] = {"max_batch_seconds": 0.025, "max_batch_seconds_mixed": 0.010}  # longer: no faster


class TransformersEngine:
    """See engine.types.Engine. Its makers turn the last hidden states of tokens into rows."""

    def __init__(
        self,
        forward: Forward,
        makers: Makers,
        *,
        info: ModelInfo,
        limits: EngineLimits,
        queries: QueryTable | None = None,
        num_adapters: int = 0,
    ) -> None:
        self.info = info
        self.limits = limits
        self._forward = forward
        self._makers = makers
        self._queries = queries
        self._num_adapters = num_adapters
        self._device = torch.device(info.device)
        self._num_computing = limits.streams  # threads that `collect` has not seen end
        self._submitted = SubmittedBatches(limits.depth)
        self._finished: queue.SimpleQueue[tuple[int, Results | EngineError] | None] = queue.SimpleQueue()
        for stream in range(limits.streams):
            threading.Thread(target=self._compute_forever, name=f"compute {stream}", daemon=True).start()

    def submit(self, batch: Batch) -> int:
        return self._submitted.put(batch)

    def compute_alone(self, batch: Batch) -> Results | EngineError | None:
        return None  # batches are computed by threads of their own

    def collect(self) -> tuple[int, Results | EngineError]:
        while self._num_computing:
            finished = self._finished.get()
            if finished is not None:
                self._submitted.collected()
                return finished
            self._num_computing -= 1
        raise EngineClosed

    def close(self) -> None:
        for _ in range(self.limits.streams):
            self._submitted.end()

    def _compute_forever(self) -> None:
        torch.set_num_threads(1)  # for the calling thread only, as is the next call
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        while (submitted := self._submitted.get()) is not None:
            ticket, batch = submitted
            self._finished.put((ticket, self._answer(batch)))
        self._finished.put(None)

    def _answer(self, batch: Batch) -> Results | EngineError:
        try:
            return self._compute(batch)
        except Exception as error:
            answer = engine_error(error)
        # not earlier, because the exception's traceback held the tensors of the batch
        if answer.kind is EngineErrorKind.OUT_OF_MEMORY and self._device.type == "cuda":
            torch.cuda.empty_cache()
        return answer

    def _compute(self, batch: Batch) -> Results:
        assert batch.outputs in self.info.outputs, batch.outputs
        assert (batch.cu_seqlens[1:] > batch.cu_seqlens[:-1]).all(), "a sequence without tokens"
        assert batch.adapters is None or batch.adapters.max() <= self._num_adapters, "an adapter that is not there"
        if self._queries is None:
            return self._run(batch)
        documents = self._queries.documents(batch)
        return self._queries.with_queries({} if documents is None else self._run(documents), batch)

    def _run(self, batch: Batch) -> Results:
        token_rows = self._forward(batch)
        return {kind: self._makers[kind](token_rows, batch) for kind in batch.outputs}


def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> TransformersEngine:
    """Load an engine. On the CPU it computes `options.num_threads` batches at a time, or one if the model's forward
    can't run in several threads. Raises ModelError."""
    on_stage("device")
    placement = place(options)
    folder = read_with(options)
    if folder.is_static:
        raise ModelError("these are static embeddings; --engine static serves them")
    queries = query_table(folder)
    check_fits(folder, placement)
    torch.set_num_threads(1)  # as in the threads that compute, so that measurements hold for them
    choice = _prepare(folder, placement, options, on_stage)
    limits = _limits(folder, options, placement, is_reentrant=choice.is_reentrant)
    info = _info(folder, placement, choice, name=name, reason=reason)
    forward = hiding(choice.forward) if folder.hides_tokens else choice.forward
    num_adapters = len(folder.adapters or folder.loras)
    return TransformersEngine(
        forward, choice.makers, info=info, limits=limits, queries=queries, num_adapters=num_adapters
    )


def _limits(folder: ModelFolder, options: LoadOptions, placement: Placement, *, is_reentrant: bool) -> EngineLimits:
    streams = 1 if placement.is_gpu or not is_reentrant else options.num_threads
    return EngineLimits(
        **options.batch_limits(folder.max_seqlen),
        streams=streams,
        depth=streams + 1,
        **(_GPU_BATCHES if placement.is_gpu else {}),
    )


def _prepare(folder: ModelFolder, placement: Placement, options: LoadOptions, on_stage: OnStage) -> ForwardChoice:
    on_stage("weights")
    model = _load(folder, placement)
    on_stage("self-test")
    findings = SelftestCache(folder, placement, options)
    known = findings.find()
    prepacks = not placement.is_gpu and placement.dtype is torch.float32
    try:
        choice = choose_forward(model, folder, prepacks=prepacks, known=known, least_tried=options.least_tried)
    except ModelError:
        if not prepacks and known is None:
            raise
        # perhaps because a layer reads weights of another one, which prepacking removes
        choice = choose_forward(_load(folder, placement), folder, least_tried=options.least_tried)
    if choice.finding != known:
        findings.put(choice.finding)
    return choice


def _load(folder: ModelFolder, placement: Placement) -> PreTrainedModel:
    """The model, moved to its device."""
    model = load_model(folder, dtype=placement.dtype)
    try:
        model.to(placement.device)  # type: ignore[arg-type]
        put_adapters(model, folder)
    except RuntimeError as error:  # another process may have taken the GPU's memory
        raise ModelError(f"the model can't be moved to {placement.device}: {one_line(error)}") from error
    return model


def _info(folder: ModelFolder, placement: Placement, choice: ForwardChoice, *, name: str, reason: str) -> ModelInfo:
    padded = "batches with tokens that the others are not to see are computed padded" if folder.hides_tokens else ""
    table = NOTE_OF_TABLE if folder.query_table else ""
    info = folder.info(
        name=name,
        engine="transformers",
        reason=reason,
        dtype=str(placement.dtype).removeprefix("torch."),
        device=str(placement.device),
        notes=(*choice.notes, *filter(None, (padded, table, note_of(folder.loras)))),
    )
    return dataclasses.replace(
        info,
        token_dimensions=folder.hidden_size,
        is_padded=choice.finding.way == PADDED,
        shares_prefixes=choice.finding.shares_prefixes,
    )
