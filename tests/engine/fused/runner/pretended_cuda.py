"""torch.cuda as far as engine.fused.cuda_device uses it, on the CPU: what happens is written down.

All happens at once, but for rows on their way out, which arrive as late as they may: when the host waits for them. A
recorded graph is the work itself, done again at each replay.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from engine.fused import cuda_device
from engine.fused.cuda_device import Graph


class PretendedCuda:
    """What happened, in order: "compute waits", "replay", …"""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.recording_failures: list[Exception] = []  # of the next recordings
        self.leaving: list[tuple[torch.Tensor, torch.Tensor]] = []  # where to, and what, until an event comes
        self.threads: set[int] = set()  # whose device has been set; that of the others is the first GPU
        self._names = itertools.cycle(("computing", "copying", "copying entries", "recording"))
        zeros, empty = torch.zeros, torch.empty
        monkeypatch.setattr(torch, "zeros", lambda *sizes, pin_memory=False, **kind: zeros(*sizes, **kind))
        monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **kind: empty(*sizes, **kind))
        stand_ins: dict[str, Any] = {
            "Stream": lambda _: Stream(next(self._names), self.events),
            "Event": lambda blocking=False: Event(self),
            "stream": self._stream,
            "set_device": lambda _: self.threads.add(threading.get_ident()),
            "synchronize": lambda _: pytest.fail("the whole device is waited for, which breaks what is recorded"),
            "current_stream": lambda _: Stream("current", []),
            "empty_cache": lambda: self.events.append("empty cache"),
            "graph_pool_handle": lambda: (0, 1),
            "mem_get_info": lambda _: (1 << 40, 2 << 40),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(cuda_device, "recorded", self._recorded)
        monkeypatch.setattr(cuda_device, "_copied_to_host", self._copied_to_host)

    @contextlib.contextmanager
    def _stream(self, stream: "Stream") -> Iterator[None]:
        assert threading.get_ident() in self.threads, "this thread's device is the first GPU"
        if stream.name != "recording":
            self.events.append(f"on {stream.name}")
        yield

    def _copied_to_host(self, rows: torch.Tensor) -> torch.Tensor:
        host_rows = torch.empty_like(rows)
        self.leaving.append((host_rows, rows))
        return host_rows

    def _recorded(self, work: Callable[[], None], *, pool: Any, stream: "Stream") -> Graph:
        assert stream.name == "recording"
        self.events.append("record")
        if self.recording_failures:
            raise self.recording_failures.pop(0)

        def replay() -> None:
            self.events.append("replay")
            work()

        return Graph(replay, 10)


class Stream:
    """Of torch.cuda."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self._events = events

    def wait_event(self, event: "Event") -> None:
        assert event.recorded_on, "an event is waited for that has not been recorded"
        self._events.append(f"{self.name} waits for {event.recorded_on}")

    def synchronize(self) -> None:
        self._events.append(f"host waits for {self.name}")


class Event:
    """Of torch.cuda."""

    def __init__(self, cuda: PretendedCuda) -> None:
        self.recorded_on = ""
        self._cuda = cuda
        self._leaving: list[tuple[torch.Tensor, torch.Tensor]] = []

    def record(self, stream: Stream) -> None:
        self.recorded_on = stream.name
        if stream.name.startswith("copying"):
            self._leaving, self._cuda.leaving = self._cuda.leaving, []

    def synchronize(self) -> None:
        assert self.recorded_on
        assert threading.get_ident() in self._cuda.threads, "this thread's device is the first GPU"
        self._cuda.events.append(f"host waits for event of {self.recorded_on}")
        with torch.inference_mode():
            for host_rows, rows in self._leaving:
                host_rows.copy_(rows)
