"""What good clients notice in some seconds, and what memory the server takes meanwhile."""

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.measuring.load import drive
from benchmarks.measuring.processes import forget_tree_peaks, tree, tree_peak_rss_mb, tree_pss_mb
from benchmarks.measuring.servers import RunningServer, ServerFailed
from embedline.bench.load import Load, summarize
from embedline.bench.requests import HttpRequest

RATE = 200.0  # requests a second, at random times
_MAX_IN_FLIGHT = 2000  # more than ever are
_LOOK_SECONDS = 0.5  # between two looks at the memory
_BESIDE_SECONDS = 0.5  # between two doings of another key


@dataclass(slots=True)
class Period:
    """One period, or several of the same kind together."""

    latencies_ms: list[float] = field(default_factory=list)  # ascending, of the answered requests
    failures: Counter[str] = field(default_factory=Counter)
    pss_mb: float = 0.0  # the most that all processes of the server had at one look
    peaks_mb: float = 0.0  # the sum of each process's own peak of resident memory, which no look can miss
    beside_seconds: list[float] = field(default_factory=list)  # that another key's own doings took, in order

    def add(self, other: "Period") -> None:
        """Another one of the same kind."""
        self.latencies_ms = sorted(self.latencies_ms + other.latencies_ms)
        self.failures += other.failures
        self.beside_seconds += other.beside_seconds
        self.pss_mb = max(self.pss_mb, other.pss_mb)
        self.peaks_mb = max(self.peaks_mb, other.peaks_mb)


class Watched:
    """A server with clients that send at a steady rate, whether answers come or not."""

    def __init__(self, server: RunningServer, requests: Sequence[HttpRequest]) -> None:
        self._server = server
        self._requests = list(requests)
        self._pid = server.process.pid

    def processes(self) -> set[int]:
        """Of the server."""
        return set(tree(self._pid))

    def period(self, seconds: float, *, seed: int, beside: Callable[[int], None] | None = None) -> Period:
        """What the clients notice in this time, and what does `beside`. The same seed sends at the same times."""
        found = Period()
        load = Load(concurrency=_MAX_IN_FLIGHT, seconds=seconds, rate=RATE, seed=seed)
        forget_tree_peaks(self._pid)
        with self._looking_at_memory(found), self._doing(beside, found):
            summary = summarize(drive(self._server.port, self._requests, load))
        found.peaks_mb = tree_peak_rss_mb(self._pid)
        found.latencies_ms = summary.latencies_ms
        found.failures += Counter(summary.failures)
        return found

    @contextlib.contextmanager
    def _doing(self, beside: Callable[[int], None] | None, found: Period) -> Iterator[None]:
        """It again and again while the block runs, once at least."""

        def do(ended: threading.Event) -> None:
            while beside is not None:
                began = time.perf_counter()
                try:
                    beside(self._server.port)
                except (OSError, http.client.HTTPException, ServerFailed) as error:
                    found.failures[f"another key's: {error}"] += 1
                else:
                    found.beside_seconds.append(time.perf_counter() - began)
                if ended.wait(_BESIDE_SECONDS):
                    return

        with _in_a_thread(do):
            yield

    @contextlib.contextmanager
    def _looking_at_memory(self, found: Period) -> Iterator[None]:
        def look(ended: threading.Event) -> None:
            while not ended.wait(_LOOK_SECONDS):
                found.pss_mb = max(found.pss_mb, tree_pss_mb(self._pid))

        with _in_a_thread(look):
            yield


@contextlib.contextmanager
def _in_a_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """While the block runs; then the event is set, and the work waited for."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
