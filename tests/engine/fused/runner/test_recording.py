"""What a recording that fails leaves behind: nothing. torch.cuda is made up, and as careless as the real one."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from engine.fused.cuda_device import Graph, on_recorder, recorded

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


def record(work: Callable[[], object]) -> Graph:
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
        record(work)
    assert cuda.recorded_on == ["recording"]
    assert cuda.streams == ["own"]
    assert cuda.pools == []
    if raised is not None and work is not int:
        assert ("memory" if work is out_of_memory else "a compiler's own") in str(raised.value)


def test_one_that_works_can_follow_one_that_failed(cuda: CarelessCuda) -> None:
    cuda.ends = False
    with pytest.raises(RuntimeError, match="during capture"):
        on_recorder(lambda: record(int))
    cuda.ends = True
    assert on_recorder(lambda: record(int)).num_bytes == 0
