"""The one registry of the whole server, in the supervisor. It sums what the processes send with their heartbeats.

Gauges that are read only when Prometheus asks come from other collectors (gauges.py).
"""

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from server.features.table import FEATURES
from server.metrics.declared import (
    BATCHES,
    FOR_TEI,
    REQUESTS,
    TOKENIZING,
    Declared,
    Labels,
    histograms,
    processes,
    scalars,
)
from server.metrics.tei import Counted, tei_text
from wire.control import Json

# A page takes some 6 ms to make, and whoever asks needs no key by default.
PAGES_AT_ONCE, _PAGES_PER_SECOND = 30, 10.0
# The roles of all processes that a server may have, in the order of starting.
ROLES = ("engine", "tokenizer", "batch manager", *(one.name for one in FEATURES if one.process), "frontend")
PROCESSES = processes(ROLES)
OF_FEATURES: dict[str, Sequence[Declared]] = {one.name: one.metrics() for one in FEATURES if one.metrics is not None}
ALL = (*REQUESTS, *TOKENIZING, *BATCHES, *(each for some in OF_FEATURES.values() for each in some), *PROCESSES)
_DECLARED = {declared.name: declared for declared in (*ALL, *FOR_TEI)}

logger = logging.getLogger("embedline.server")


class Collector(Protocol):
    """Reads numbers when Prometheus asks."""

    def collect(self) -> Iterator[str]:
        """The metrics in Prometheus's text format."""
        ...


class Registry:
    """Unknown names and wrong numbers of labels or cells are logged and dropped."""

    def __init__(self, collectors: Sequence[Collector], *, models: Sequence[str] = ()) -> None:
        """`models` are the names of those that are served."""
        self._sums = _by_name("counter")
        for name, sums in self._sums.items():
            sums.update(dict.fromkeys(_zeros(_DECLARED[name], models), 0))
        self._gauges = _by_name("gauge")
        self._cells: dict[str, dict[Labels, list[float]]] = {
            name: {} for name, declared in _DECLARED.items() if declared.kind == "histogram"
        }
        self._collectors = collectors
        self._page = ""
        self._pages_left, self._asked_at = float(PAGES_AT_ONCE), time.monotonic()

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        sums = self._sums[name]
        sums[labels] = sums.get(labels, 0) + by

    def absorb(self, deltas: Json) -> None:
        """Add what `wire.metrics.Recorder.drain` gave in some process."""
        for name, *labels, value in deltas.get("counts", ()):
            if _is_declared(name, labels, kind="counter"):
                self.count(name, *labels, by=value)
        for name, *labels, value in deltas.get("levels", ()):
            if _is_declared(name, labels, kind="gauge"):
                self._gauges[name][tuple(labels)] = value
        for name, *labels, cells in deltas.get("histograms", ()):
            if _is_declared(name, labels, kind="histogram", num_cells=len(cells)):
                held = self._cells[name].setdefault(tuple(labels), [0] * len(cells))
                for index, value in enumerate(cells):
                    held[index] += value

    def forget(self, process: str) -> None:
        """A process has died: drop the gauges that it sent about itself."""
        for values in self._gauges.values():
            for labels in [labels for labels in values if process in labels]:
                del values[labels]

    def text(self) -> str:
        """The page in Prometheus's text format. Who asks too often gets the last page again, at most a tenth of a
        second old."""
        now = time.monotonic()
        self._pages_left = min(PAGES_AT_ONCE, self._pages_left + (now - self._asked_at) * _PAGES_PER_SECOND)
        self._asked_at = now
        if self._pages_left >= 1:
            self._pages_left -= 1
            num_waiting = sum(self._gauges["embedline_queue_sequences"].values())
            counted = Counted(self._sums, self._cells, num_waiting)
            gauges = (one.collect() for one in self._collectors)
            self._page = "".join(itertools.chain(self.collect(), *gauges, [tei_text(counted)]))
        return self._page

    def collect(self) -> Iterator[str]:
        """The metrics that were counted and sent, in Prometheus's text format."""
        for declared in ALL:
            name = declared.name
            if declared.kind == "histogram":
                yield histograms(declared, self._cells[name].items())
            else:
                yield scalars(declared, (self._sums if declared.kind == "counter" else self._gauges)[name].items())


def _by_name(kind: str) -> dict[str, dict[Labels, float]]:
    return {name: {} for name, declared in _DECLARED.items() if declared.kind == kind}


def _zeros(declared: Declared, models: Sequence[str]) -> Iterator[Labels]:
    """The labels of a counter's series that nothing was counted in yet, where it is known which there will be."""
    of_models: list[Labels] = [(model,) for model in models] if "model" in declared.labels else [()]
    values: list[Labels] = [(value,) for value in declared.zeros] or [()]
    for model, value in itertools.product(of_models, values):
        if len(model + value) == len(declared.labels):
            yield model + value


def _is_declared(name: str, labels: list[str], *, kind: str, num_cells: int = 0) -> bool:
    declared = _DECLARED.get(name)
    if declared is not None:
        its_cells = len(declared.cells) + 2 if kind == "histogram" else 0
        if (declared.kind, len(declared.labels), its_cells) == (kind, len(labels), num_cells):
            return True
    logger.error("%s %s with %d labels is not declared", kind, name, len(labels))
    return False
