"""A fused engine around a random model in memory, put together by what puts the real ones together."""

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.clock import gpu_event
from benchmarks.gpu.fused_models import FusedModel
from benchmarks.gpu.random_models import RandomModel, save_pooling, save_tokenizer
from engine.fused.assembly import Model, assemble
from engine.fused.cuda_device import CudaDevice
from engine.fused.engine import FusedEngine
from engine.fused.offer import FusedConfig
from engine.fused.outputs import Modules
from engine.fused.packing import Shape
from engine.fused.runner import NumRows
from engine.model import model_folder
from engine.types import Results

_MAX_NUM_SEQS = 1024


class TimedDevice:
    """A GPU that notes when its stream began and ended each batch. See engine.fused.runner.Device."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def reset(self) -> None:
        """Forget what was noted."""
        self._events.clear()

    def busy_seconds(self) -> float:
        """Of all batches since, which must have been collected."""
        return 1e-3 * math.fsum(before.elapsed_time(after) for before, after in self._events)

    def block(self, slot: int) -> NDArray[np.int32]:
        """See Device."""
        return self._device.block(slot)

    def start(self, slot: int, shape: Shape, num_rows: NumRows) -> None:
        """See Device. On an idle stream the first event comes at once, and the launches after it count as work."""
        before, after = gpu_event(), gpu_event()
        before.record(self._device.stream)
        self._device.start(slot, shape, num_rows)
        after.record(self._device.stream)
        self._events.append((before, after))

    def finish(self, slot: int) -> Results:
        """See Device."""
        return self._device.finish(slot)

    def settle(self) -> None:
        """See Device."""
        self._device.settle()


def engine_of(
    model: RandomModel, fused: FusedModel, folder: Path, *, max_num_tokens: int
) -> tuple[FusedEngine, TimedDevice | None]:
    """The engine, and its device (None if that is a CPU). `folder` is an empty one, wanted only now."""
    described = Model(
        name="m",
        reason="a benchmark",
        chosen=_choices(model, folder),
        spec=fused.spec,
        weights=fused.weights,
        modules=Modules(),
        ops=fused.ops,
        max_num_seqs=_MAX_NUM_SEQS,
        num_threads=1,
    )
    engine = assemble(described, max_num_tokens=max(max_num_tokens, model.shape.max_seqlen))
    if model.device.type == "cpu":
        return engine, None
    device = engine._runner._device
    assert isinstance(device, CudaDevice)
    timed = TimedDevice(device)
    engine._runner._device = timed
    return engine, timed


def _choices(model: RandomModel, folder: Path) -> FusedConfig:
    model.config.save_pretrained(folder)
    save_tokenizer(model.shape, folder)
    save_pooling(model.shape, folder)
    is_gpu = model.device.type == "cuda"
    return FusedConfig(
        folder=model_folder.read(folder, needs_weights=False),
        device=model.device,
        capability=torch.cuda.get_device_capability(model.device) if is_gpu else None,
        dtype=model.dtype,
    )
