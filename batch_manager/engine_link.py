"""The connection to one engine worker: batches out, checked rows in. Decides nothing."""

import logging
import struct
from collections.abc import Sequence
from typing import Protocol

from batch_manager.answers import MalformedAnswer, Shapes, check_results
from batch_manager.batches import Batch
from engine import messages
from engine.types import EngineErrorKind, EngineLimits, ModelInfo, OutputKind, Results
from wire.frames import Buffer
from wire.link import Link

logger = logging.getLogger("embedline.batch_manager")


class EngineEvents(Protocol):
    """Who is told what an engine does."""

    def engine_ready(self, engine_id: int, limits: EngineLimits) -> None:
        """It takes batches from now on."""
        ...

    def engine_lost(self, engine_id: int, num_batches: int) -> None:
        """Its connection is gone, with all the batches it held."""
        ...

    def batch_done(self, engine_id: int, batch: Batch, results: Results, compute_seconds: float) -> None:
        """The rows of a batch; they are views that stay valid, and fit the batch."""
        ...

    def batch_failed(self, engine_id: int, batch: Batch, kind: EngineErrorKind) -> None:
        """A batch gave no rows, or none that fit it."""
        ...


class EngineLink:
    """One engine, ready or not. Connects again whenever it is lost. `shapes` is shared by all engines of a model."""

    def __init__(self, path: str, engine_id: int, *, shapes: Shapes, events: EngineEvents) -> None:
        self._engine_id = engine_id
        self._shapes = shapes
        self._events = events
        self._sent: dict[int, Batch] = {}
        self._link = Link(path, on_frame=self._received, on_up=lambda: None, on_down=self._lost)

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> None:
        """Close for good."""
        self._link.close()

    def send(self, batch: Batch, token_ids: Sequence[Buffer], token_type_ids: Sequence[Buffer]) -> None:
        """Give the engine a batch whose ids are these buffers one after another."""
        self._sent[batch.batch_id] = batch
        seqlens: list[int] = []
        for piece in batch.slices:
            seqlens += piece.seqlens
        self._link.send(
            messages.BATCH, batch.batch_id, messages.encode_batch(batch.outputs, seqlens, token_ids, token_type_ids)
        )

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == messages.READY:
            self._ready(*messages.decode_ready(payload))
            return
        batch = self._sent.pop(frame_id, None)
        if batch is None:
            logger.error("engine %d answered batch %d, which it does not have", self._engine_id, frame_id)
        elif kind == messages.RESULT:
            self._result(batch, payload)
        elif kind == messages.FAILED:
            error = messages.decode_failed(payload)
            logger.warning("engine %d: a batch failed: %s: %s", self._engine_id, error.kind.name, error)
            self._events.batch_failed(self._engine_id, batch, error.kind)

    def _ready(self, info: ModelInfo, limits: EngineLimits) -> None:
        if OutputKind.POOLED in info.outputs:
            self._shapes[OutputKind.POOLED] = (False, info.dimensions)
        self._events.engine_ready(self._engine_id, limits)

    def _result(self, batch: Batch, payload: memoryview) -> None:
        try:
            results, compute_seconds = messages.decode_result(payload)
            check_results(results, batch.outputs, num_seqs=batch.num_seqs, shapes=self._shapes)
        except (MalformedAnswer, ValueError, struct.error) as error:
            logger.error("engine %d gave a malformed answer: %s", self._engine_id, error)
            self._events.batch_failed(self._engine_id, batch, EngineErrorKind.FAILED)
            return
        self._events.batch_done(self._engine_id, batch, results, compute_seconds)

    def _lost(self) -> None:
        num_batches = len(self._sent)
        if num_batches:
            logger.warning("engine %d was lost with %d batches", self._engine_id, num_batches)
        self._sent.clear()
        self._events.engine_lost(self._engine_id, num_batches)
