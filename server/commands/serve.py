"""Begins a server: its log and its signals, then the process of the first engine, and then all else.

Little is imported here, since that process imports its own libraries while this one imports server.commands.running.
"""

import atexit
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import NoReturn

from embedline.progress import Report, shown
from server.settings.flag import PREFIX
from server.settings.settings import Settings
from server.supervisor.spawn import EarlyEngine, raise_open_files
from server.supervisor.stderr_relay import StderrRelay
from wire.process import begin, dump_stacks_on_signal, formatter

logger = logging.getLogger("embedline.server")

_Handler = Callable[[int, object], None]  # of signals


def serve(settings: Settings) -> int:
    """Run until stopped; the exit code. Raises SettingsError and ModelError before the server is up."""
    relay = StderrRelay(formatter("supervisor", json_output=settings.json_output))
    atexit.register(relay.close)  # after the last line, and after the traceback of a fault of ours
    begin("supervisor", settings.log_level, json_output=settings.json_output)
    dump_stacks_on_signal(fatal_fd=relay.original)  # who reads the pipe would be dead
    early = EarlyEngine()
    exit_at_once = partial(_exit_at_once, early, relay)
    _on_stop_signal(exit_at_once)
    _log_variables(settings)
    raise_open_files()
    try:
        early.start(settings)
        from server.commands import running
        from server.settings.tei_flags import warn_of_flags_without_effect

        warn_of_flags_without_effect(settings)
        prepared = running.prepare(settings, progress=partial(_converting, relay, exit_at_once))
        signals: list[int] = []  # before the supervisor takes them; an exception here would end in a traceback
        _on_stop_signal(lambda number, frame: signals.append(number))
        return running.run(settings, prepared, relay, early=early, signals=signals)
    finally:
        early.end()


def _log_variables(settings: Settings) -> None:
    """Log names alone: values may be secrets."""
    if settings.variables:
        logger.info("read of the environment: %s", ", ".join(settings.variables))
    if names := ", ".join(settings.variables_passed_over):
        logger.info("not read of the environment, as they lack the prefix %s: %s", PREFIX, names)
    if names := ", ".join(settings.variables_unknown):
        logger.warning("not read of the environment, as no flag has these names: %s", names)


def _on_stop_signal(handler: _Handler) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _exit_at_once(early: EarlyEngine, relay: StderrRelay, number: int, frame: object) -> NoReturn:
    """An ordinary exit would wait for the threads that download from the hub. A later start resumes them."""
    early.kill()
    relay.close()
    os._exit(0)


@contextlib.contextmanager
def _converting(relay: StderrRelay, exit_at_once: _Handler, title: str) -> Iterator[Report]:
    """Show how far a conversion is. A signal to stop removes what is unfinished first."""
    _on_stop_signal(_exit)
    try:
        with contextlib.ExitStack() as stack:
            terminal = relay.terminal()
            if terminal is not None:
                stack.enter_context(terminal)
            yield stack.enter_context(shown(title, terminal=terminal, say=logger.info))
    finally:
        _on_stop_signal(exit_at_once)


def _exit(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)
