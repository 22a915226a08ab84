"""Shows how far something is: by a bar where there are a terminal and rich, else by a line now and then."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TextIO

LINE_SECONDS = 10.0

Report = Callable[[int, int], None]  # gets bytes that are done, and of all
Progress = Callable[[str], AbstractContextManager[Report]]  # shows, under a title, how far a job over bytes is


class Interval:
    """Says when so many seconds have passed since it said so last, or was made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = clock()

    def is_over(self) -> bool:
        """Whether they have, and then the next ones begin."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def bar(stream: TextIO, *columns: str, **options: Any) -> Any:
    """rich's, not started yet; None where the stream is no terminal or rich is not installed. A column is the name of
    one of rich's, or a format."""
    import importlib.util

    if not stream.isatty() or importlib.util.find_spec("rich") is None:
        return None
    from rich import progress
    from rich.console import Console

    made = [getattr(progress, name)() if name.isidentifier() else progress.TextColumn(name) for name in columns]
    return progress.Progress(*made, console=Console(file=stream), **options)


def _say(line: str) -> None:
    print(f"embedline: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def shown(
    title: str,
    *,
    terminal: TextIO | None = None,
    say: Callable[[str], None] = _say,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report]:
    """Gives a function that shows progress while the block runs: by a bar on `terminal`, or on stderr where that is
    one, else by lines that `say` gets."""
    drawn = bar(terminal or sys.stderr, "{task.description}", "BarColumn", "DownloadColumn", "TimeRemainingColumn")
    if drawn is not None:
        with drawn:
            task = drawn.add_task(title, total=None)
            yield lambda num_done, total: drawn.update(task, completed=num_done, total=total)
        return
    interval = Interval(LINE_SECONDS, clock)

    def report(num_done: int, total: int) -> None:
        if interval.is_over():
            say(f"{title}: {100 * num_done // max(total, 1)} %")

    yield report


class InputProgress:
    """Counts inputs that are done, and says so on stderr: by one line that changes on a terminal. A context manager."""

    def __init__(
        self, total: int | None, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._began = clock()
        self._interval = Interval(0.2 if self._is_terminal else LINE_SECONDS, clock)
        self._num_done = 0

    def __enter__(self) -> "InputProgress":
        return self

    def __exit__(self, *ended: object) -> None:
        self._show()
        if self._is_terminal:
            self._stream.write("\n")
            self._stream.flush()

    def add(self, num_inputs: int) -> None:
        """Count so many more as done."""
        self._num_done += num_inputs
        if self._interval.is_over():
            self._show()

    def _show(self) -> None:
        speed = self._num_done / max(self._clock() - self._began, 1e-9)
        words = f"{self._num_done:,}"
        if self._total is not None:
            words += f" of {self._total:,}"
        words += f" inputs, {speed:,.0f}/s"
        if self._total is not None and self._num_done and self._num_done < self._total:
            words += f", {(self._total - self._num_done) / speed:,.0f} s left"
        self._stream.write(f"\r{words}\x1b[K" if self._is_terminal else f"{words}\n")
        self._stream.flush()
