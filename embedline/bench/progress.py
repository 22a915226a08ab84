"""Shows on stderr how far a run is: a bar on a terminal if rich is installed, else a line now and then."""

import asyncio
import contextlib
import importlib.util
import sys
import time
from collections.abc import AsyncIterator
from typing import Protocol

from embedline.bench.load import Phase

_BAR_SECONDS = 1.0  # drawing keeps the generator for some milliseconds: of fewer than 1 % of its requests
_LINE_SECONDS = 10.0


class Display(Protocol):
    """Shows a run of one or more phases."""

    period: float  # seconds between updates

    def update(self, name: str, share: float, num_answers: int) -> None:
        """`share` of the phase is done, from 0 to 1."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class Lines:
    """Plain lines."""

    period = _LINE_SECONDS

    def update(self, name: str, share: float, num_answers: int) -> None:
        print(f"{name}: {share:.0%}, {num_answers} answers", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bar:
    """rich's progress bar."""

    period = _BAR_SECONDS

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.fields[answers]} answers"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), auto_refresh=False)
        self._tasks = {
            name: self._progress.add_task(name, total=1.0, answers=0, start=False) for name in ("warm-up", "load")
        }
        self._progress.start()

    def update(self, name: str, share: float, num_answers: int) -> None:
        self._progress.start_task(self._tasks[name])
        self._progress.update(self._tasks[name], completed=share, answers=num_answers)
        self._progress.refresh()

    def close(self) -> None:
        self._progress.stop()


def make_display() -> Display:
    """The bar if it can be shown."""
    return Bar() if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None else Lines()


@contextlib.asynccontextmanager
async def shown(display: Display, name: str, phase: Phase) -> AsyncIterator[None]:
    """Show the phase while the block runs it."""

    async def keep_showing() -> None:
        began = time.perf_counter()
        while True:
            display.update(name, _share(phase, time.perf_counter() - began), len(phase.samples))
            await asyncio.sleep(display.period)

    task = asyncio.create_task(keep_showing())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    display.update(name, 1.0, len(phase.samples))


def _share(phase: Phase, elapsed: float) -> float:
    load = phase.load
    share = elapsed / load.seconds if load.seconds else len(phase.samples) / max(load.num_requests or 1, 1)
    return min(share, 1.0)
