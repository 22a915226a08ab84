"""Gauges of every process, from the kernel and the supervisor, read when Prometheus asks."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.metrics.declared import Declared, gauge

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")  # a second

_LABELS = ("process",)
# fmt: off
_UP = gauge("embedline_process_up", _LABELS, "1 while the process serves; 0 while it starts or is down.",
    "0 for 5 minutes")
_BEAT = gauge("embedline_heartbeat_age_seconds", _LABELS, "Time since the process's last heartbeat.", "over 5")
_BUSY = gauge("embedline_engine_batch_age_seconds", _LABELS,
    "How long an engine has been computing its oldest batch; 0 while it is idle.", "over 30")
_RSS = gauge("process_resident_memory_bytes", _LABELS, "Memory in use, shared pages included.", "it only grows")
_FDS = gauge("process_open_fds", _LABELS, "Open file descriptors.")
_CPU = Declared(name="process_cpu_seconds_total", kind="counter", labels=_LABELS,
    help="CPU time of the process; a restarted process starts from 0.")
# fmt: on
PROCESS_GAUGES = (_UP, _BEAT, _BUSY, _RSS, _FDS, _CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """What the supervisor knows of a child process."""

    title: str
    pid: int | None
    is_ready: bool
    last_beat: float  # time.monotonic() seconds
    busy_since: float | None  # of an engine, likewise; None while it is idle
    is_engine: bool


@dataclass(frozen=True, slots=True)
class _Usage:
    resident_bytes: int
    cpu_seconds: float
    num_fds: int


class ProcessGauges(Collector):
    """Gauges of all processes, the supervisor included."""

    def __init__(self, children: Callable[[], Sequence[ProcessState]]) -> None:
        self._children = children

    def collect(self) -> Iterator[Metric]:
        """Read now."""
        children, now = self._children(), time.monotonic()
        up, beat, busy = _gauge(_UP), _gauge(_BEAT), _gauge(_BUSY)
        for child in children:
            up.add_metric((child.title,), child.is_ready)
            if child.pid is not None:
                beat.add_metric((child.title,), max(0.0, now - child.last_beat))
            if child.is_engine:
                busy.add_metric((child.title,), 0.0 if child.busy_since is None else max(0.0, now - child.busy_since))
        yield from (up, beat, busy)
        pids = {"supervisor": os.getpid()} | {child.title: child.pid for child in children if child.pid is not None}
        yield from _usages({title: usage for title, pid in pids.items() if (usage := _usage(pid)) is not None})


def _usages(usages: dict[str, _Usage]) -> Iterator[Metric]:
    resident, fds = _gauge(_RSS), _gauge(_FDS)
    cpu = CounterMetricFamily(_CPU.name, _CPU.help, labels=_CPU.labels)
    for title, usage in usages.items():
        resident.add_metric((title,), usage.resident_bytes)
        fds.add_metric((title,), usage.num_fds)
        cpu.add_metric((title,), usage.cpu_seconds)
    yield from (resident, fds, cpu)


def _usage(pid: int) -> _Usage | None:
    """None if it has just ended, or we may not read it. proc(5) has the fields."""
    folder = _PROC / str(pid)
    try:
        pages = int((folder / "statm").read_bytes().split()[1])
        # the second field is the name in brackets, which may have any character
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        num_fds = sum(1 for _ in os.scandir(folder / "fd"))
    except OSError:
        return None
    return _Usage(pages * _PAGE_BYTES, (int(fields[11]) + int(fields[12])) / _TICKS, num_fds)


def _gauge(declared: Declared) -> GaugeMetricFamily:
    return GaugeMetricFamily(declared.name, declared.help, labels=declared.labels)
