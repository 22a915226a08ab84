"""What a recording that fails leaves behind: nothing. torch.cuda is made up, and as careless as the real one."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from engine.fused.runner.graphs import on_recorder, recorded

FAILED = "CUDA error: operation failed due to a previous error during capture"


class CarelessCuda:
    """Before torch 2.12: a recording that can't be ended leaves its stream current, and allocations go to its pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams = ["own"]
        self.pools: list[object] = []  # that allocations go to
        self.ends = True
        stand_ins = {
            "CUDAGraph": type("CUDAGraph", (), {"replay": lambda _: None}),
            "current_stream": lambda: self.streams[-1],
            "stream": self._stream,
            "graph": self._graph,
            "graph_pool_handle": lambda: (0, 7),
            "current_device": lambda: 0,
            "mem_get_info": lambda: (1, 2),
            "memory_reserved": lambda: 0,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end, raising=False)

    @contextlib.contextmanager
    def _stream(self, name: str) -> Iterator[None]:
        before = list(self.streams)
        self.streams.append(name)
        try:
            yield
        finally:
            self.streams[:] = before

    @contextlib.contextmanager
    def _graph(self, _: object, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        self.streams.append("recording")
        self.pools.append(pool)
        try:
            yield
        finally:
            if not self.ends:
                raise RuntimeError(FAILED)
            self.pools.remove(pool)
            self.streams.pop()

    def _end(self, device: int, pool: object) -> None:
        if pool not in self.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools.remove(pool)


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
        recorded(work)
    assert cuda.streams == ["own"]
    assert cuda.pools == []
    if raised is not None and work is not int and ends:
        assert ("memory" if work is out_of_memory else "a compiler's own") in str(raised.value)


def test_one_that_works_can_follow_one_that_failed(cuda: CarelessCuda) -> None:
    cuda.ends = False
    with pytest.raises(RuntimeError, match="during capture"):
        on_recorder(lambda: recorded(int))
    cuda.ends = True
    assert on_recorder(lambda: recorded(int)).num_bytes == 0
