"""The connection to one engine worker: batches out, checked rows in. Decides nothing."""

import asyncio
import logging
import struct
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from batch_manager.scheduling.batches import ScheduledBatch
from engine import messages
from engine.types import (
    ROWS_OF_TOKENS,
    EngineErrorKind,
    EngineLimits,
    ModelInfo,
    OutputKind,
    Results,
    Rows,
    kinds_in,
)
from wire.connection import Link
from wire.frames import Buffer, PayloadTooLarge
from wire.parts import Part

Shapes = dict[OutputKind, tuple[bool, int]]  # is ragged, D

_ROWS_OF_TOKENS = kinds_in(ROWS_OF_TOKENS)

logger = logging.getLogger("embedline.batch_manager")


class MalformedAnswer(Exception):
    """An engine's answer does not fit its batch."""


class EngineEvents(Protocol):
    """Callbacks for what an engine does."""

    def engine_ready(self, engine_id: int, limits: EngineLimits) -> None:
        """The engine takes batches from now on."""
        ...

    def engine_lost(self, engine_id: int, num_batches: int) -> None:
        """The engine's connection is gone, with all the batches it held."""
        ...

    def batch_done(self, engine_id: int, batch: ScheduledBatch, results: Results, compute_seconds: float) -> None:
        """The rows of a batch; they are views that stay valid, and fit the batch."""
        ...

    def batch_failed(self, engine_id: int, batch: ScheduledBatch, kind: EngineErrorKind) -> None:
        """A batch gave no rows, or none that fit it."""
        ...


class EngineLink:
    """One engine, ready or not. Connects again whenever it is lost. `shapes` is shared by all engines of a model."""

    def __init__(self, path: str, engine_id: int, *, shapes: Shapes, events: EngineEvents) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine_id = engine_id
        self._shapes = shapes
        self._events = events
        self._sent: dict[int, ScheduledBatch] = {}
        self._link = Link(path, on_frame=self._received, on_up=lambda: None, on_down=self._lost)

    def open(self) -> None:
        """Begin to connect."""
        self._link.open()

    def close(self) -> None:
        """Close for good."""
        self._link.close()

    def send(self, batch: ScheduledBatch, token_ids: Sequence[Buffer], parts: Mapping[Part, Sequence[Buffer]]) -> None:
        """Give the engine a batch whose ids, and whose other parts, are these buffers one after another.

        One that no frame can carry is reported as failed, as any other, once the caller has returned.
        """
        self._sent[batch.batch_id] = batch
        frame = messages.encode_batch(
            batch.outputs, batch.seqlens(), token_ids, parts, is_urgent=batch.is_urgent, gives_way=batch.gives_way
        )
        try:
            self._link.send(messages.BATCH, batch.batch_id, frame)
        except PayloadTooLarge as error:
            logger.error("a batch can't be sent to engine %d: %s", self._engine_id, error)
            self._loop.call_soon(self._could_not_send, batch)

    def send_canary(self, batch: ScheduledBatch) -> None:
        """Have the engine compute the batch whose rows it knows; it is answered as any other, without rows."""
        self._sent[batch.batch_id] = batch
        self._link.send(messages.CANARY, batch.batch_id)

    def restart(self) -> None:
        """Have the engine's process end, and the supervisor start another. A stuck one is the watchdog's."""
        self._link.send(messages.EXIT, 0)

    def _received(self, kind: int, frame_id: int, payload: memoryview) -> None:
        if kind == messages.READY:
            self._ready(*messages.decode_ready(payload))
            return
        batch = self._sent.get(frame_id)
        if batch is None:
            logger.error("engine %d answered batch %d, which it does not have", self._engine_id, frame_id)
            return
        try:
            outcome = self._decode(batch, kind, payload)
        except (MalformedAnswer, ValueError, OverflowError, struct.error) as error:
            logger.error("engine %d gave a malformed answer: %s", self._engine_id, error)
            outcome = EngineErrorKind.FAILED
        del self._sent[frame_id]
        if isinstance(outcome, EngineErrorKind):
            self._events.batch_failed(self._engine_id, batch, outcome)
        else:
            self._events.batch_done(self._engine_id, batch, *outcome)

    def _could_not_send(self, batch: ScheduledBatch) -> None:
        if self._sent.pop(batch.batch_id, None) is not None:  # else the engine was lost, and the batch with it
            self._events.batch_failed(self._engine_id, batch, EngineErrorKind.OUT_OF_MEMORY)

    def _ready(self, info: ModelInfo, limits: EngineLimits) -> None:
        if OutputKind.POOLED in info.outputs:
            self._shapes[OutputKind.POOLED] = (False, info.dimensions)
        self._events.engine_ready(self._engine_id, limits)

    def _decode(self, batch: ScheduledBatch, kind: int, payload: memoryview) -> tuple[Results, float] | EngineErrorKind:
        """Checked rows and the seconds of computing, or why there are none. Raises what malformed frames raise."""
        if kind == messages.RESULT:
            results, compute_seconds = messages.decode_result(payload)
            if batch.is_canary:
                return {}, compute_seconds
            check_results(results, batch.outputs, seqlens=batch.seqlens(), shapes=self._shapes)
            return results, compute_seconds
        if kind == messages.FAILED:
            error = messages.decode_failed(payload)
            logger.warning("engine %d: a batch failed: %s: %s", self._engine_id, error.kind.name, error)
            return error.kind
        raise MalformedAnswer(f"it is a frame of kind {kind:#06x}")

    def _lost(self) -> None:
        num_batches = len(self._sent)
        if num_batches:
            logger.warning("engine %d was lost with %d batches", self._engine_id, num_batches)
        self._sent.clear()
        self._events.engine_lost(self._engine_id, num_batches)


def check_results(results: Results, outputs: OutputKind, *, seqlens: Sequence[int], shapes: Shapes) -> None:
    """Raise MalformedAnswer unless there are rows of every output kind for sequences of these lengths, in the
    shapes that this model's rows always have; a kind not seen before is put into `shapes`."""
    if results.keys() != set(kinds_in(outputs)):
        raise MalformedAnswer("its output kinds are not those that were asked for")
    for kind, rows in results.items():
        if not _fits(rows, len(seqlens)) or (kind in _ROWS_OF_TOKENS and not _is_row_per_token(rows, seqlens)):
            raise MalformedAnswer(f"its {kind.name} rows do not belong to {len(seqlens)} sequences")
        shape = (rows.offsets is not None, rows.values.shape[1])
        if not shape[1] or shapes.setdefault(kind, shape) != shape:
            raise MalformedAnswer(f"its {kind.name} rows, {shape[1]} numbers each, are not shaped as this model's are")


def _fits(rows: Rows, num_seqs: int) -> bool:
    if rows.offsets is None:
        return len(rows.values) == num_seqs
    offsets = rows.offsets
    if len(offsets) != num_seqs + 1 or offsets[0] != 0 or offsets[-1] != len(rows.values):
        return False
    return bool((offsets[1:] >= offsets[:-1]).all())


def _is_row_per_token(rows: Rows, seqlens: Sequence[int]) -> bool:
    return rows.offsets is not None and np.diff(rows.offsets).tolist() == list(seqlens)
