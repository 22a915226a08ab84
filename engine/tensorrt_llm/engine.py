"""The `tensorrt-llm` engine: `LLM(encode_only=True).encode(...)`, one batch after the other.

`encode` blocks, runs on the thread that calls it, and shares its buffers between calls: the thread that collects also
computes, and the depth is 1. Knows batches and rows; the model class is described by a ModelClass.

The library only warns where its own largest warm-up shape runs out of memory, so that a server could start and fail
later of what it had promised to take. So a loaded model computes its shortest and its largest batch first.
"""

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.blocking import BlockingEngine
from engine.messages import LoadOptions
from engine.model.model_folder import ModelFolder
from engine.rows.with_numpy import RowModules, load_modules
from engine.selftest import sample_ids, selfcheck
from engine.selftest.sample_ids import Sequences
from engine.tensorrt_llm import loading
from engine.tensorrt_llm.offer import TensorRTLLMConfig, choose
from engine.tensorrt_llm.planning.head import without_trailing_padding
from engine.tensorrt_llm.planning.plan import ModelClass
from engine.types import (
    Batch,
    DeviceTrouble,
    Engine,
    EngineError,
    EngineErrorKind,
    EngineLimits,
    ModelError,
    ModelInfo,
    OnStage,
    OutputKind,
    ProcessSpent,
    Results,
    Rows,
    untold,
)

logger = logging.getLogger("embedline.engine")
# From sequences as lists of ids, and keyword arguments, to rows [B, L], a tensor on the host.
Encode = Callable[[list[list[int]], dict[str, Any]], Any]


class TensorrtLlmEngine(BlockingEngine):
    """Gives one kind of rows, as `model_class` says."""

    def __init__(
        self, encode: Encode, model_class: ModelClass, *, modules: RowModules, info: ModelInfo, limits: EngineLimits
    ) -> None:
        super().__init__(info=info, limits=limits)
        self._encode = encode
        self._model_class = model_class
        self._modules = modules

    def _answer(self, batch: Batch) -> Results | EngineError:
        answer = super()._answer(batch)
        if isinstance(answer, EngineError) and answer.kind is EngineErrorKind.OUT_OF_MEMORY:
            loading.release_memory()  # only here, as until now the exception's traceback held the batch's tensors
        return answer

    def _compute(self, batch: Batch) -> Results:
        return {self._model_class.output: Rows(self._rows(batch))}

    def _rows(self, batch: Batch) -> NDArray[np.float32]:
        assert batch.outputs is self._model_class.output, batch.outputs
        raw = self._encode(_sequences(batch, self._model_class.pad_id), self._token_types(batch))
        rows = np.ascontiguousarray(raw.float().numpy())
        if rows.shape != (batch.num_seqs, self._model_class.num_outputs):
            raise EngineError(EngineErrorKind.FAILED, f"rows of shape {rows.shape} for {batch.num_seqs} sequences")
        return self._modules(rows) if self._model_class.output is OutputKind.POOLED else rows

    def _token_types(self, batch: Batch) -> dict[str, Any]:
        if not self._model_class.takes_token_types:
            return {}
        zeros = np.zeros(batch.num_tokens, np.int32)
        return {"token_type_ids": loading.on_gpu(zeros if batch.token_type_ids is None else batch.token_type_ids)}


def _sequences(batch: Batch, pad_id: int | None) -> list[list[int]]:
    ids, bounds = batch.token_ids.tolist(), batch.cu_seqlens.tolist()
    return [without_trailing_padding(ids[start:end], pad_id) for start, end in itertools.pairwise(bounds)]


def load(*, name: str, reason: str, options: LoadOptions, on_stage: OnStage = untold) -> TensorrtLlmEngine:
    """Load an engine. Raises ModelError with one line: ProcessSpent once tensorrt_llm has been imported."""
    on_stage("copy")
    chosen = choose(options)
    os.environ.update(loading.NO_TELEMETRY)
    hide_other_gpus(options.device, os.environ)
    try:
        engine = _checked_engine(chosen, _info(chosen, name=name, reason=reason, device=options.device), on_stage)
    except DeviceTrouble:
        raise
    except ModelError as error:
        raise ProcessSpent(str(error)) from error
    for note in engine.info.notes:
        logger.info("%s: %s", name, note)
    return engine


def _checked_engine(chosen: TensorRTLLMConfig, info: ModelInfo, on_stage: OnStage) -> TensorrtLlmEngine:
    """Loaded, and tried on its first batches. Raises ModelError."""
    on_stage("library")
    library = loading.load(chosen)
    modules = load_modules(chosen.folder.path, chosen.folder.steps)
    limits = loading.limits(chosen, library.limits)
    engine = TensorrtLlmEngine(library.encode, chosen.model_class, modules=modules, info=info, limits=limits)
    on_stage("probe")
    found = affordable_limits(engine, chosen.folder)
    if found != limits:
        engine = TensorrtLlmEngine(library.encode, chosen.model_class, modules=modules, info=info, limits=found)
    on_stage("check")
    selfcheck.check(engine, chosen.folder, dtype=info.dtype)
    return engine


def _info(chosen: TensorRTLLMConfig, *, name: str, reason: str, device: str) -> ModelInfo:
    folder, model_class = chosen.folder, chosen.model_class
    info = folder.info(
        name=name,
        engine="tensorrt-llm",
        reason=reason,
        dtype=_dtype(chosen),
        device=device,
        notes=(f"tensorrt_llm {chosen.version}", model_class.note, *chosen.notes),
    )
    return dataclasses.replace(info, outputs=model_class.output)


def _dtype(chosen: TensorRTLLMConfig) -> str:
    match chosen.checkpoint.algorithm:
        case "":
            return chosen.model_class.dtype or chosen.dtype
        case "NVFP4":
            return "nvfp4"
    return "fp8"


def hide_other_gpus(device: str, environ: MutableMapping[str, str]) -> None:
    """Let CUDA see one GPU in this process, as tensorrt_llm takes the first; before CUDA is initialised."""
    index = int(device.partition(":")[2] or 0)
    visible = [one.strip() for one in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    environ["CUDA_VISIBLE_DEVICES"] = visible[index] if visible else str(index)


def affordable_limits(engine: Engine, folder: ModelFolder) -> EngineLimits:
    """The engine's limits, with no larger batches than there turns out to be memory for. Raises ModelError where a
    batch fails otherwise, or where there is no memory for the longest sequence."""
    found, asked = engine.limits, engine.limits.max_num_tokens
    _compute(engine, sample_ids.arbitrary(folder, [1]))
    while not _compute(engine, sample_ids.largest_batch(folder, found)):
        if found.max_num_tokens <= found.max_seqlen:
            raise DeviceTrouble(
                f"one sequence of {found.max_seqlen} tokens runs out of memory on {engine.info.device}: free some of "
                "it there, or lower --max-input-length"
            )
        loading.release_memory()
        found = dataclasses.replace(found, max_num_tokens=max(found.max_num_tokens // 2, found.max_seqlen))
    if found.max_num_tokens < asked:
        logger.warning("batches of at most %d tokens: %d run out of memory", found.max_num_tokens, asked)
    return found


def _compute(engine: Engine, sequences: Sequences) -> bool:
    """Whether there is memory for it. Raises ModelError where it fails otherwise."""
    results = selfcheck.answered(engine, sequences)
    if not isinstance(results, EngineError):
        return True
    if results.kind is EngineErrorKind.OUT_OF_MEMORY:
        return False
    raise selfcheck.cannot_run(engine.info.engine, results)
