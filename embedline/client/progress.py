"""Shows on stderr how far a call is: one line that changes on a terminal, else a line every ten seconds."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

_TERMINAL_SECONDS = 0.2
_LINE_SECONDS = 10.0


class Progress:
    """Counts inputs that are done; a context manager."""

    def __init__(
        self, total: int | None, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._began = self._shown_at = clock()
        self._num_done = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show(self._clock())
        if self._is_terminal:
            self._stream.write("\n")
            self._stream.flush()

    def add(self, num_inputs: int) -> None:
        """So many more are done."""
        self._num_done += num_inputs
        now = self._clock()
        if now - self._shown_at >= (_TERMINAL_SECONDS if self._is_terminal else _LINE_SECONDS):
            self._show(now)

    def _show(self, now: float) -> None:
        self._shown_at = now
        speed = self._num_done / max(now - self._began, 1e-9)
        words = f"{self._num_done:,}"
        if self._total is not None:
            words += f" of {self._total:,}"
        words += f" inputs, {speed:,.0f}/s"
        if self._total is not None and self._num_done and self._num_done < self._total:
            words += f", {(self._total - self._num_done) / speed:,.0f} s left"
        self._stream.write(f"\r{words}\x1b[K" if self._is_terminal else f"{words}\n")
        self._stream.flush()
