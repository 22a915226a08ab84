"""What a process says of itself on SIGUSR1 and before a fatal signal ends it: where its threads are. And where its
tasks wait."""

import asyncio
import faulthandler
import inspect
import signal
from collections import Counter

_MAX_PLACES = 20


def dump_stacks_on_signal(*, fatal_fd: int = 2) -> None:
    """From now on SIGUSR1 writes the stacks of all threads to standard error, even while this process is stuck.

    So do SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT, to `fatal_fd`, and end it as ever.
    """
    faulthandler.enable(file=fatal_fd, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def waiting_tasks() -> dict[str, int]:
    """Where the tasks of the running loop wait, and how many in each place; the places with most of them."""
    return dict(Counter(map(_place, asyncio.all_tasks())).most_common(_MAX_PLACES))


def _place(task: "asyncio.Task[object]") -> str:
    coroutine = task.get_coro()
    while inspect.iscoroutine(coroutine) and inspect.iscoroutine(coroutine.cr_await):
        coroutine = coroutine.cr_await
    frame = coroutine.cr_frame if inspect.iscoroutine(coroutine) else None
    return "elsewhere" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
