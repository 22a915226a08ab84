"""One run from options to exit code: texts, requests, warm-up, load, report."""

import asyncio
import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from embedline.bench import report
from embedline.bench.connection import ConnectionLost, TookTooLong
from embedline.bench.load import Generator, Load, Phase
from embedline.bench.options import Options, OptionsError, Target, parse_url
from embedline.bench.progress import make_display, shown
from embedline.bench.report import summarize
from embedline.bench.requests import Request, built_in_texts, prepare, read_texts

_MIN_TEXTS, _MAX_TEXTS = 4096, 65_536  # built in; texts that recur too soon could be joined by the server
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
    print(report.as_text(options, phase, summary))
    if options.json is not None:
        options.json.write_text(report.as_json(options, phase, summary), encoding="utf-8")
    return 0 if summary.num_requests else 1


def run_on_loop(work: Coroutine[None, None, _Result]) -> _Result:
    """On uvloop where it is installed: the generator then costs about half."""
    has_uvloop = importlib.util.find_spec("uvloop") is not None
    factory: Callable[[], asyncio.AbstractEventLoop] | None = (
        importlib.import_module("uvloop").new_event_loop if has_uvloop else None
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


async def _drive(options: Options, target: Target, requests: list[Request]) -> Phase:
    """The phase that counts, after its warm-up."""
    load = _load(options)
    generator = Generator(target, requests, patience=options.timeout)
    display = None
    try:
        await generator.check()
        display = make_display()
        if options.warmup:
            warmup = Phase(dataclasses.replace(load, seconds=options.warmup, num_requests=None))
            async with shown(display, "warm-up", warmup):
                await generator.run(warmup)
        phase = Phase(load)
        async with shown(display, "load", phase):
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
