"""Shows on stderr how far a long job over bytes is: a bar on a terminal if rich is installed, else a line every ten
seconds."""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator

Report = Callable[[int, int], None]  # bytes that are done, and of all

_LINE_SECONDS = 10.0


@contextlib.contextmanager
def shown(title: str) -> Iterator[Report]:
    """Gives a function that shows progress while the block runs."""
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(title) as report:
            yield report
    else:
        yield lines(title, time.monotonic)


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None)
        yield lambda num_done, total: progress.update(task, completed=num_done, total=total)


def lines(title: str, clock: Callable[[], float]) -> Report:
    """A plain line every ten seconds of `clock`, none of them in the first ten."""
    last = clock()

    def report(num_done: int, total: int) -> None:
        nonlocal last
        if clock() - last >= _LINE_SECONDS:
            last = clock()
            print(f"embedline: {title}: {100 * num_done // max(total, 1)} %", file=sys.stderr, flush=True)

    return report
