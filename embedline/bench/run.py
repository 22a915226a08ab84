"""One run from options to exit code: texts, requests, warm-up, load, report."""

import asyncio
import contextlib
import dataclasses
import importlib
import importlib.util
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from embedline.bench.connection import ConnectionLost, TookTooLong
from embedline.bench.load import Generator, Load, Phase, summarize
from embedline.bench.options import Options, OptionsError, Target, parse_url
from embedline.bench.report import as_json, as_text
from embedline.bench.requests import HttpRequest, built_in_texts, prepare, read_texts
from embedline.progress import LINE_SECONDS, bar

_MIN_TEXTS, _MAX_TEXTS = 4096, 65_536  # built in; texts that recur too soon could be joined by the server
_BAR_SECONDS = 1.0  # drawing keeps the generator for some milliseconds: of fewer than 1 % of its requests
_Result = TypeVar("_Result")


def run(options: Options) -> int:
    """The exit code: 1 where the server can't be reached or answered nothing. Raises OptionsError."""
    target = parse_url(options.url)
    requests = prepare(options, target, _texts(options))
    _check_writable(options.json)
    try:
        phase = run_on_loop(_drive(options, target, requests))
    except (ConnectionLost, TookTooLong) as error:
        reason = str(error) or "no answer"
        print(f"embedline: {target.host}:{target.port} can't be reached: {reason}", file=sys.stderr)
        return 1
    summary = summarize(phase)
    print(as_text(options, phase, summary))
    if options.json is not None:
        options.json.write_text(as_json(options, phase, summary), encoding="utf-8")
    return 0 if summary.num_requests else 1


def run_on_loop(work: Coroutine[None, None, _Result]) -> _Result:
    """Run on uvloop where it is installed: the generator then costs about half."""
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    factory: Callable[[], asyncio.AbstractEventLoop] | None = (
        importlib.import_module("uvloop").new_event_loop if has_uvloop else None
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


async def _drive(options: Options, target: Target, requests: list[HttpRequest]) -> Phase:
    """The phase that counts, after its warm-up."""
    load = _load(options)
    generator = Generator(target, requests, patience=options.timeout)
    display = None
    try:
        await generator.check()
        display = _Display()
        if options.warmup:
            warmup = Phase(dataclasses.replace(load, seconds=options.warmup, num_requests=None))
            async with _shown(display, "warm-up", warmup):
                await generator.run(warmup)
        phase = Phase(load)
        async with _shown(display, "load", phase):
            await generator.run(phase)
        return phase
    finally:
        generator.close()
        if display is not None:
            display.close()


def _load(options: Options) -> Load:
    return Load(
        concurrency=options.concurrency,
        seconds=options.duration if options.requests is None else None,
        num_requests=options.requests,
        rate=options.rate,
        seed=options.seed if options.arrivals == "poisson" else None,
    )


def _texts(options: Options) -> list[str]:
    if options.texts is not None:
        return read_texts(options.texts)
    num = min(max(_MIN_TEXTS, 2 * options.concurrency * options.batch_size), _MAX_TEXTS)
    return built_in_texts(num, seed=options.seed)


def _check_writable(path: Path | None) -> None:
    """Before the run and not after it."""
    if path is None:
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise OptionsError(f"--json {path}: {error.strerror}") from None


class _Display:
    """Shows on stderr how far the phases are: by a bar, else by a line now and then."""

    def __init__(self) -> None:
        columns = ("{task.description:<8}", "BarColumn", "{task.fields[answers]} answers", "TimeElapsedColumn")
        self._bar = bar(sys.stderr, *columns, auto_refresh=False)
        self.period = LINE_SECONDS if self._bar is None else _BAR_SECONDS
        if self._bar is not None:
            names = ("warm-up", "load")
            self._tasks = {name: self._bar.add_task(name, total=1.0, answers=0, start=False) for name in names}
            self._bar.start()

    def update(self, name: str, share: float, num_answers: int) -> None:
        if self._bar is None:
            print(f"{name}: {share:.0%}, {num_answers} answers", file=sys.stderr, flush=True)
            return
        self._bar.start_task(self._tasks[name])
        self._bar.update(self._tasks[name], completed=share, answers=num_answers)
        self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@contextlib.asynccontextmanager
async def _shown(display: _Display, name: str, phase: Phase) -> AsyncIterator[None]:
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
