"""Shows how far a long job over bytes is: a bar on a terminal if rich is installed, else a line every ten seconds."""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

Report = Callable[[int, int], None]  # bytes that are done, and of all

_LINE_SECONDS = 10.0


def _say(line: str) -> None:
    print(f"embedline: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def shown(title: str, *, terminal: TextIO | None = None, say: Callable[[str], None] = _say) -> Iterator[Report]:
    """Gives a function that shows progress while the block runs: on `terminal`, else on stderr if that is one, else by
    lines that `say` gets."""
    stream = terminal or sys.stderr
    if stream.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(title, stream) as report:
            yield report
    else:
        yield lines(title, time.monotonic, say)


@contextlib.contextmanager
def _bar(title: str, stream: TextIO) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream)) as progress:
        task = progress.add_task(title, total=None)
        yield lambda num_done, total: progress.update(task, completed=num_done, total=total)


def lines(title: str, clock: Callable[[], float], say: Callable[[str], None] = _say) -> Report:
    """A line every ten seconds of `clock`, none of them in the first ten."""
    last = clock()

    def report(num_done: int, total: int) -> None:
        nonlocal last
        if clock() - last >= _LINE_SECONDS:
            last = clock()
            say(f"{title}: {100 * num_done // max(total, 1)} %")

    return report
