"""Times work on a device: medians of many calls, rates held for seconds, graphs. Knows nothing of what is timed."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from benchmarks.gpu.card import Load, Watch
from engine.fused.cuda_device import Graph, on_recorder, recorded

Call = Callable[[], object]

_MIN_ROUNDS, _MAX_ROUNDS = 5, 2000
_CHUNK_SECONDS = 0.05  # of work that is queued before the host looks at the time again


class Clock(Protocol):
    """How a device tells the time."""

    device: torch.device
    is_gpu: bool

    def synchronize(self) -> None:
        """Wait until all work is done."""
        ...

    def sample(self, call: Call, *, num: int) -> list[float]:
        """Seconds that each of so many calls took the device, one after the other."""
        ...

    def mark(self) -> Any:
        """This moment in the device's work."""
        ...

    def between(self, before: Any, after: Any) -> float:
        """Seconds from one mark to another, once the device has passed both."""
        ...

    def load(self, since: float) -> Load | None:
        """The card's clocks from this moment of time.perf_counter() on; None where it doesn't tell."""
        ...

    def graph(self, call: Call) -> Call:
        """What repeats the work of a call without the host's part in it. Shapes and addresses stay as they are."""
        ...


class GpuClock:
    """CUDA events and CUDA graphs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_gpu = True
        torch.cuda.set_device(device)
        self._watch = Watch(device)

    def synchronize(self) -> None:
        """See Clock."""
        torch.cuda.synchronize(self.device)

    def sample(self, call: Call, *, num: int) -> list[float]:
        """See Clock."""
        events = [gpu_event() for _ in range(num + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        self.synchronize()
        return [1e-3 * before.elapsed_time(after) for before, after in itertools.pairwise(events)]

    def mark(self) -> Any:
        """See Clock."""
        event = gpu_event()
        event.record()
        return event

    def between(self, before: Any, after: Any) -> float:
        """See Clock."""
        return 1e-3 * float(before.elapsed_time(after))

    def load(self, since: float) -> Load | None:
        """See Clock."""
        return self._watch.since(since)

    def graph(self, call: Call) -> Call:
        """See Clock."""
        # The same tensors each time, and what the call reads: alive for as long as the graph is, which would read what
        # the memory was given out to since.
        kept: list[object] = [call]

        def record() -> Graph:
            torch.cuda.set_device(self.device)
            call()  # what libraries set up at a first call may not be captured
            torch.cuda.empty_cache()  # torch gives nothing back while it records
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            return recorded(lambda: kept.append(call()), pool=torch.cuda.graph_pool_handle(), stream=stream)

        graph = on_recorder(record)

        def replay() -> object:
            graph.replay()
            return kept[-1]

        return replay


class CpuClock:
    """The host's clock, for toy runs that check this code."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.is_gpu = False

    def synchronize(self) -> None:
        """See Clock."""

    def sample(self, call: Call, *, num: int) -> list[float]:
        """See Clock."""
        times = [time.perf_counter()]
        for _ in range(num):
            call()
            times.append(time.perf_counter())
        return [after - before for before, after in itertools.pairwise(times)]

    def mark(self) -> Any:
        """See Clock."""
        return time.perf_counter()

    def between(self, before: Any, after: Any) -> float:
        """See Clock."""
        return float(after - before)

    def load(self, since: float) -> Load | None:
        """See Clock."""
        return None

    def graph(self, call: Call) -> Call:
        """See Clock."""
        return call


@dataclass(frozen=True, slots=True)
class Held:
    """A rate held for a while."""

    seconds: float  # of one call: the median over chunks
    held_seconds: float  # in all
    load: Load | None  # the card's clocks meanwhile; None where it doesn't tell


def gpu_event() -> torch.cuda.Event:
    """One that has a time."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def clock_of(device: str) -> Clock:
    """By the device's name: "cpu", "cuda:0", …"""
    return CpuClock() if device == "cpu" else GpuClock(torch.device(device))


def median_seconds(clock: Clock, calls: Sequence[Call], *, seconds: float, in_graph: bool = False) -> float:
    """Of one call, after a round of warm-up. Calls are the same work over different buffers, taken in turn.

    in_graph: a round of all is one graph, so that the host's part of small calls does not count.
    """

    def each() -> None:
        for call in calls:
            call()

    around = clock.graph(each) if in_graph else each
    around()
    clock.synchronize()
    first = statistics.median(clock.sample(around, num=2))
    num = min(max(round(seconds / max(first, 1e-7)), _MIN_ROUNDS), _MAX_ROUNDS)
    return statistics.median(clock.sample(around, num=num)) / len(calls)


def hold(clock: Clock, calls: Sequence[Call], *, seconds: float) -> Held:
    """Keep the device busy for at least so long. Chunks are queued four deep, so that it never waits for the host."""
    for call in calls:
        call()
    clock.synchronize()
    once = statistics.median(clock.sample(calls[0], num=3))
    per_chunk = max(1, round(min(_CHUNK_SECONDS, seconds) / max(once, 1e-7) / len(calls)))
    turns = itertools.cycle(calls)

    def chunk() -> None:
        for _ in range(per_chunk * len(calls)):
            next(turns)()

    chunks: list[float] = []
    began = time.perf_counter()
    while not chunks or time.perf_counter() < began + seconds:
        chunks += clock.sample(chunk, num=4)
    held = time.perf_counter() - began
    return Held(statistics.median(chunks) / per_chunk / len(calls), held, clock.load(began))


def rotation(make: Callable[[int], Call], *, num_bytes: int, clock: Clock) -> list[Call]:
    """Calls over as many sets of buffers as exceed the cache several times; `make` is given the number of a set."""
    if not clock.is_gpu:
        return [make(0), make(1)]
    cache: int = torch.cuda.get_device_properties(clock.device).L2_cache_size
    return [make(number) for number in range(min(max(2, 4 * cache // max(num_bytes, 1)), 64))]
