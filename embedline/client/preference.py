"""How a call is carried out: batches, timeouts, retries, hedging. Names as in Baseten's client, where it has them."""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = ("connection", "content-length", "transfer-encoding")  # what the connection needs to be right


class CancellationToken:
    """Cancels the calls that were given it, from any thread or signal handler. A cancelled token stays cancelled."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the handler of a signal may cancel while the thread has it
        self._is_cancelled = False
        self._callbacks: list[Callable[[], object]] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Ends the calls at once: their connections are closed, and they raise Cancelled."""
        with self._lock:
            self._is_cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def watch(self, callback: Callable[[], object]) -> None:
        """Have it called on cancellation, at once if that was before."""
        with self._lock:
            if not self._is_cancelled:
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], object]) -> None:
        """The call is over."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProcessingPreference:
    """How a call is carried out. Raises ValueError for values out of range, naming them."""

    batch_size: int = 128
    """Inputs of one request, at most. A server that takes fewer teaches the client its limit."""
    max_chars_per_request: int | None = None
    """Characters of one request, at most; a longer text goes alone. None = no limit."""
    max_concurrent_requests: int = 32
    """Requests in flight, at most. The client finds by the server's answers how many are worth while."""
    timeout_s: float = 300.0
    """Seconds that one attempt may take. The server is told, and drops what it can't answer in time."""
    total_timeout_s: float | None = None
    """Seconds that the whole call may take, retries and waits included. None = no limit."""
    max_retries: int = 5
    """How often one request is tried again after 408, 409, 425, 429, 5xx, a timeout or a lost connection."""
    initial_backoff_ms: float = 125.0
    """The wait before the first retry, four times as long before each other one, up to 30 s.
    Retry-After goes first, up to `timeout_s`: a longer one fails at once."""
    hedge_delay: float | None = None
    """Seconds after which an unanswered request is sent a second time, on another connection. None = never."""
    hedge_budget_pct: float = 0.10
    """The share of requests that may be sent a second time for `hedge_delay`."""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of each request, beside the client's own or in their place."""
    cancel_token: CancellationToken | None = None
    """Cancels the call from another thread."""

    def __post_init__(self) -> None:
        _check("batch_size", self.batch_size, 1, 1 << 20)
        _check("max_concurrent_requests", self.max_concurrent_requests, 1, 1024)
        _check("max_chars_per_request", self.max_chars_per_request, 1, 1 << 30)
        _check("timeout_s", self.timeout_s, 0.001, 86_400)
        _check("total_timeout_s", self.total_timeout_s, 0.001, 366 * 86_400)
        _check("max_retries", self.max_retries, 0, 100)
        _check("initial_backoff_ms", self.initial_backoff_ms, 1, 30_000)
        _check("hedge_delay", self.hedge_delay, 0.001, 86_400)
        _check("hedge_budget_pct", self.hedge_budget_pct, 0, 1)
        for name, value in self.extra_headers.items():
            _check_header(name, value)


def _check_header(name: str, value: str) -> None:
    """Check a header. Its value may be a secret, so messages have the name alone."""
    if not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING:
        raise ValueError(f"extra_headers must not have {name!r}")
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        raise ValueError(f"extra_headers[{name!r}] must be a text of one line in Latin-1")


def _check(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:  # nor is NaN
        raise ValueError(f"{name} must be from {least} to {most}")
