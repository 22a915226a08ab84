"""Gauges that are read when Prometheus asks: of the whole server, of each model and of every process.

Those of the server come from the shared page, so that they are right even if a process is stuck. Those of processes
come from the kernel and the supervisor.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedline import __version__
from server.metrics.declared import Declared, gauge, scalars
from wire.control import Json
from wire.page import Page
from wire.vocabulary import RequestClass

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_PROCESS = ("process",)
_BY_CLASS = ("model", "class")
_MODEL = ("model",)
# fmt: off
_READY = gauge("embedline_ready", (), "1 when a request sent now would be computed.", "0 for 5 minutes")
_BUILD = gauge("embedline_build_info", ("version",), "Always 1.")
_INFO = gauge("embedline_model_info", ("model", "engine", "dtype", "devices", "revision"),
    "1 for each model that has had a ready engine.")
_MODEL_READY = gauge("embedline_model_ready", _MODEL, "1 when a request for the model sent now would be computed.",
    "0 for 5 minutes")
_PADDED = gauge("embedline_model_padded", ("model", "engine"),
    "1 where sequences of like length are padded to the longest of them, 0 where they are packed: openvino "
    "pads small groups by design, transformers where packing fails the self-test.",
    "1 for the engine transformers and speed matters: the log and /info say why")
_FALLBACK = gauge("embedline_fp8_fallback_products", ("model", "engine"),
    "Sizes of FP8 products (of a layer, and a number of rows) that the GPU has no kernel with scales by row for: they "
    "are scaled afterwards, which should be slower.",
    "it is not 0 and speed matters: the log and /info name the layers")
_QUEUED = gauge("embedline_queue_tokens", _BY_CLASS, "Tokens waiting or in an engine.", "it grows for 10 minutes")
_OLDEST = gauge("embedline_queue_oldest_age_seconds", _BY_CLASS, "Age of the oldest waiting request.",
    "over 30 while embedline_seconds_since_last_batch is too, for a minute: nothing moves")
_WAIT = gauge("embedline_admission_wait_seconds", _BY_CLASS,
    "How long a new request would wait; above --interactive-max-wait or --bulk-max-wait it is rejected.",
    "over half of that for 10 minutes: the load is too high for the server")
_ENGINES = gauge("embedline_engines_ready", _MODEL, "Engines that can take a batch.", "less than the number of engines")
_RATE = gauge("embedline_engine_tokens_per_second", _MODEL, "Measured speed of all engines together.")
_LAST = gauge("embedline_seconds_since_last_batch", _MODEL, "Time since a batch finished; absent before the first.")
_UP = gauge("embedline_process_up", _PROCESS, "1 while the process serves; 0 while it starts or is down.",
    "0 for 5 minutes")
_BEAT = gauge("embedline_heartbeat_age_seconds", _PROCESS, "Time since the process's last heartbeat.", "over 5")
_BUSY = gauge("embedline_engine_batch_age_seconds", _PROCESS,
    "How long an engine has been computing its oldest batch; 0 while it is idle.", "over 30")
_RSS = gauge("process_resident_memory_bytes", _PROCESS, "Memory in use, shared pages included.", "it only grows")
_FDS = gauge("process_open_fds", _PROCESS, "Open file descriptors.")
_CPU = Declared(name="process_cpu_seconds_total", kind="counter", labels=_PROCESS,
    help="CPU time of the process; a restarted process starts from 0.")
# fmt: on
GAUGES = (_READY, _MODEL_READY, _BUILD, _INFO, _PADDED, _FALLBACK, _QUEUED, _OLDEST, _WAIT, _ENGINES, _RATE, _LAST)
PROCESS_GAUGES = (_UP, _BEAT, _BUSY, _RSS, _FDS, _CPU)


class ServerGauges:
    """Gauges of the server and of each model."""

    def __init__(
        self,
        page: Page,
        model_names: Sequence[str],
        *,
        is_ready: Callable[[], bool],
        expected_wait: Callable[[Page, int, RequestClass], float],
    ) -> None:
        """`expected_wait` gives the seconds that a new request would wait, by model and class."""
        self._page = page
        self._model_names = model_names
        self._is_ready = is_ready
        self._expected_wait = expected_wait

    def collect(self) -> Iterator[str]:
        """Reads the numbers now."""
        yield scalars(_READY, [((), self._is_ready())])
        yield scalars(_BUILD, [((__version__,), 1)])
        page, now = self._page, time.monotonic()
        by_class = [
            (index, request_class, (model, request_class.name.lower()))
            for index, model in enumerate(self._model_names)
            for request_class in RequestClass
        ]
        queued = page.queued_tokens.sum(axis=0)
        yield scalars(_QUEUED, [(labels, queued[index, its_class]) for index, its_class, labels in by_class])
        yield scalars(_OLDEST, [(labels, self._age(index, its_class, now)) for index, its_class, labels in by_class])
        yield scalars(
            _WAIT, [(labels, self._expected_wait(page, index, its_class)) for index, its_class, labels in by_class]
        )
        models = [(index, (model,)) for index, model in enumerate(self._model_names)]
        yield scalars(_MODEL_READY, [(labels, int(page.engines_ready[:, index].any())) for index, labels in models])
        yield scalars(_ENGINES, [(labels, page.engines_ready[:, index].sum()) for index, labels in models])
        yield scalars(_RATE, [(labels, page.tokens_per_second[:, index].sum()) for index, labels in models])
        last_at = page.last_batch_at.max(axis=0)
        yield scalars(_LAST, [(labels, now - last_at[index]) for index, labels in models if last_at[index]])

    def _age(self, model: int, request_class: RequestClass, now: float) -> float:
        since = self._page.oldest_since[:, model, request_class]
        return max(0.0, now - float(since[since > 0].min(initial=now)))


class ModelGauges:
    """Gauges of how each model is served; `models` gives the entries of a STATE."""

    def __init__(self, models: Callable[[], Sequence[Json]]) -> None:
        self._models = models

    def collect(self) -> Iterator[str]:
        """Reads the numbers now."""
        entries = self._models()
        yield scalars(_INFO, [(_labels(entry), 1) for entry in entries])
        infos = [entry["info"] for entry in entries]
        yield scalars(_PADDED, [((info["name"], info["engine"]), info["is_padded"]) for info in infos])
        yield scalars(_FALLBACK, [((info["name"], info["engine"]), info["num_fallback_products"]) for info in infos])


def _labels(entry: Json) -> tuple[str, ...]:
    info = entry["info"]
    return info["name"], info["engine"], info["dtype"], ",".join(entry["devices"]), entry["revision"] or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """The state of a child process that the supervisor knows."""

    title: str
    pid: int | None
    is_ready: bool
    last_beat: float  # time.monotonic() seconds
    busy_since: float | None  # of an engine, likewise; None while it is idle
    is_engine: bool


class ProcessGauges:
    """Gauges of all processes, the supervisor included."""

    def __init__(self, children: Callable[[], Sequence[ProcessState]]) -> None:
        self._children = children

    def collect(self) -> Iterator[str]:
        """Reads the numbers now."""
        children, now = self._children(), time.monotonic()
        alive = {child.title: child.pid for child in children if child.pid is not None}
        yield scalars(_UP, [((child.title,), child.is_ready) for child in children])
        yield scalars(_BEAT, [((one.title,), max(0.0, now - one.last_beat)) for one in children if one.title in alive])
        engines = [(child.title, child.busy_since) for child in children if child.is_engine]
        yield scalars(_BUSY, [((title,), 0.0 if since is None else max(0.0, now - since)) for title, since in engines])
        usages = [((title,), _usage(pid)) for title, pid in ({"supervisor": os.getpid()} | alive).items()]
        for place, declared in enumerate((_RSS, _FDS, _CPU)):
            yield scalars(declared, [(labels, usage[place]) for labels, usage in usages if usage is not None])


def _usage(pid: int) -> tuple[int, int, float] | None:
    """Bytes in memory, open descriptors, and seconds of a CPU. proc(5) has the fields.

    None if the process has just ended, or we may not read it.
    """
    folder = _PROC / str(pid)
    try:
        pages = int((folder / "statm").read_bytes().split()[1])
        # the second field is the name in brackets, which may have any character
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        num_fds = sum(1 for _ in os.scandir(folder / "fd"))
    except OSError:
        return None
    return pages * _PAGE_BYTES, num_fds, (int(fields[11]) + int(fields[12])) / _TICKS
