"""Runs batches on a device, slot by slot: picks the shape, packs, collects rows. Knows no tickets, threads or model."""

from collections.abc import Callable

from engine.fused.runner.device import Device
from engine.fused.runner.packing import Packer
from engine.fused.runner.shape import ALL_OUTPUTS, Shape, Shapes
from engine.machine.failures import engine_error
from engine.types import Batch, EngineError, EngineErrorKind, OutputKind, Results, Rows


class Runner:
    """Runs batches in slots, for each `stage`, `start` and `finish`.

    Only one thread at a time is in `start`, and one in `finish`; see engine.fused.runner.device.Device.
    """

    def __init__(self, device: Device, packer: Packer, shapes: Shapes) -> None:
        self._device = device
        self._packer = packer
        self._shapes = shapes
        self._inside: dict[int, tuple[Batch, Shape]] = {}  # by slot

    def stage(self, slot: int, batch: Batch) -> None:
        """Pack the batch on the host. If it raises EngineError, the slot is free again."""
        _do(lambda: self._stage(slot, batch))

    def start(self, slot: int) -> None:
        """Start to compute what was staged, without waiting. If it raises EngineError, the slot is free again."""
        error = _error_of(lambda: self._start(slot))
        if error is not None:
            del self._inside[slot]
            raise self._settled(error)

    def finish(self, slot: int) -> Results:
        """Wait for the rows of the batch in this slot. Raises EngineError."""
        results: Results = {}
        _do(lambda: results.update(self._finish(slot)))
        return results

    def _stage(self, slot: int, batch: Batch) -> None:
        assert batch.outputs in ALL_OUTPUTS, batch.outputs
        shape = self._shapes.of(batch)
        self._packer.write(self._device.block(slot), batch, shape)
        self._inside[slot] = batch, shape

    def _start(self, slot: int) -> None:
        batch, shape = self._inside[slot]
        num_rows = {kind: batch.num_tokens if kind is OutputKind.TOKENS else batch.num_seqs for kind in batch.outputs}
        self._device.start(slot, shape, num_rows)

    def _finish(self, slot: int) -> Results:
        batch, _ = self._inside.pop(slot)
        rows = self._device.finish(slot)
        return {
            kind: Rows(values, batch.cu_seqlens if kind is OutputKind.TOKENS else None) for kind, values in rows.items()
        }

    def _settled(self, error: EngineError) -> EngineError:
        """The error to report, after making the device ready for the next batch, if it still works."""
        if error.kind is EngineErrorKind.FATAL:
            return error
        return _error_of(self._device.settle) or error


def _do(work: Callable[[], None]) -> None:
    """Raises what `_error_of` gives."""
    error = _error_of(work)
    if error is not None:
        raise error


def _error_of(work: Callable[[], None]) -> EngineError | None:
    """The exception as an EngineError, which does not refer to it: that would keep the batch's large tensors."""
    try:
        work()
    except Exception as error:
        return engine_error(error)
    return None
