"""Which recorded graphs are kept, and that a recording that fails leaves nothing behind: torch.cuda is made up."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from engine.fused.cuda_device import Graph, Graphs, on_recorder, recorded
from engine.fused.packing import Shape
from engine.types import OutputKind
from tests.server_e2e.running import PATIENCE


def shape(num_tokens: int) -> Shape:
    return Shape(num_tokens, 1, 1, 16, has_types=False, outputs=OutputKind.POOLED, is_worth_a_graph=True)


class Recorder:
    """Gives graphs of a size, or an error."""

    def __init__(self, num_bytes: int = 10) -> None:
        self.num_bytes = num_bytes
        self.recorded: list[int] = []  # tokens of the shapes, one entry a recording
        self.events: list[str] = []
        self.error: Exception | None = None

    def record(self, recorded: Shape) -> Graph:
        self.recorded.append(recorded.num_tokens)
        if self.error is not None:
            raise self.error
        return Graph(lambda: self.events.append(f"replay {recorded.num_tokens}"), self.num_bytes)

    def settle(self) -> None:
        self.events.append("settle")

    def graphs(self, max_num: int = 3, max_bytes: int = 1000) -> Graphs:
        return Graphs(self.record, synchronize=self.settle, max_num=max_num, max_bytes=max_bytes)


def record(graphs: Graphs, shape: Shape) -> None:
    """Twice, for that is when it is recorded, and until it is."""
    graphs.record_if_repeated(shape)
    graphs.record_if_repeated(shape)
    on_recorder(int)
    graphs.find(shape)


def kept(graphs: Graphs, sizes: range) -> list[int]:
    return [size for size in sizes if graphs.find(shape(size)) is not None]


def test_the_one_not_used_for_longest_goes_once_nothing_runs() -> None:
    recorder = Recorder()
    graphs = recorder.graphs(max_num=3)
    for size in (1, 2, 3):
        record(graphs, shape(size))
    graphs.find(shape(1))
    assert recorder.events == []
    record(graphs, shape(4))
    assert recorder.events == ["settle"]
    assert kept(graphs, range(1, 5)) == [1, 3, 4]


def test_their_memory_is_bounded_but_one_always_stays() -> None:
    recorder = Recorder(num_bytes=400)
    graphs = recorder.graphs(max_num=100, max_bytes=1000)
    for size in range(1, 6):
        record(graphs, shape(size))
    assert kept(graphs, range(1, 6)) == [4, 5]
    recorder.num_bytes = 5000
    record(graphs, shape(9))
    assert kept(graphs, range(1, 10)) == [9]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not permitted")])
def test_what_can_not_be_recorded_is_tried_once_and_said(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    recorder.error = error
    graphs = recorder.graphs()
    with caplog.at_level(logging.WARNING, "embedline.engine"):
        for _ in range(3):
            record(graphs, shape(16))
    assert recorder.recorded == [16]
    assert graphs.find(shape(16)) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(error) in caplog.text
    recorder.error = None
    record(graphs, shape(32))
    assert graphs.find(shape(32)) is not None


def test_nobody_waits_for_a_recording() -> None:
    gate, recorder = threading.Event(), Recorder()
    record_at_once = recorder.record

    def record_late(recorded: Shape) -> Graph:
        assert gate.wait(PATIENCE)
        return record_at_once(recorded)

    graphs = Graphs(record_late, synchronize=recorder.settle, max_num=3, max_bytes=1000)
    for size in (16, 16, 32, 32):
        graphs.record_if_repeated(shape(size))
        assert graphs.find(shape(size)) is None
    gate.set()
    on_recorder(int)
    assert recorder.recorded == [16]  # one at a time; the other has to come again
    assert graphs.find(shape(16)) is not None
    record(graphs, shape(32))
    assert graphs.find(shape(32)) is not None


FAILED = "CUDA error: operation failed due to a previous error during capture"


class CarelessCuda:
    """Before torch 2.12: a recording that can't be ended leaves allocations going to its pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams = ["own"]
        self.recorded_on: list[str] = []
        self.pools: list[object] = []  # that allocations go to
        self.ends = True
        stand_ins = {
            "CUDAGraph": lambda: CarelessGraph(self),
            "stream": self._stream,
            "current_device": lambda: 0,
            "mem_get_info": lambda: (1, 2),
            "memory_reserved": lambda: 0,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        for name in ("synchronize", "empty_cache"):  # which batches beside a recording would pay for
            monkeypatch.setattr(torch.cuda, name, lambda name=name: pytest.fail(name))
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end, raising=False)

    @contextlib.contextmanager
    def _stream(self, name: str) -> Iterator[None]:
        self.streams.append(name)
        try:
            yield
        finally:
            self.streams.pop()

    def _end(self, device: int, pool: object) -> None:
        if pool not in self.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools.remove(pool)


class CarelessGraph:
    """Of torch.cuda."""

    def __init__(self, cuda: CarelessCuda) -> None:
        self._cuda = cuda

    def capture_begin(self, *, pool: object, capture_error_mode: str) -> None:
        self._cuda.recorded_on.append(self._cuda.streams[-1])
        self._cuda.pools.append(pool)

    def capture_end(self) -> None:
        if not self._cuda.ends:
            raise RuntimeError(FAILED)
        self._cuda.pools.pop()

    def replay(self) -> None:
        """Nothing."""


def record_by(work: Callable[[], object]) -> Graph:
    return recorded(work, pool=(0, 7), stream="recording")  # type: ignore[arg-type]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CarelessCuda:
    return CarelessCuda(monkeypatch)


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def uncompiled() -> None:
    raise TypeError("a compiler's own kind of error")


@pytest.mark.holds("A recording that fails leaves nothing behind")
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("work", [int, out_of_memory, uncompiled])
def test_a_failure_leaves_stream_and_allocator_as_they_were(work: type, ends: bool, cuda: CarelessCuda) -> None:
    cuda.ends = ends
    is_fine = ends and work is int
    with contextlib.nullcontext() if is_fine else pytest.raises(RuntimeError) as raised:
        record_by(work)
    assert cuda.recorded_on == ["recording"]
    assert cuda.streams == ["own"]
    assert cuda.pools == []
    if raised is not None and work is not int:
        assert ("memory" if work is out_of_memory else "a compiler's own") in str(raised.value)


def test_one_that_works_can_follow_one_that_failed(cuda: CarelessCuda) -> None:
    cuda.ends = False
    with pytest.raises(RuntimeError, match="during capture"):
        on_recorder(lambda: record_by(int))
    cuda.ends = True
    assert on_recorder(lambda: record_by(int)).num_bytes == 0
