"""What SIGUSR1 writes to the log: the stacks and queues of all processes, one process after the other."""

import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Sequence

from server.supervisor.child import ChildProcess
from wire.dump import waiting_tasks
from wire.page import Page

logger = logging.getLogger("embedline.supervisor")


async def dump(children: Sequence[ChildProcess], page: Page) -> None:
    """Takes up to a second for each process that is stuck."""
    logger.warning("SIGUSR1: stacks and queues of this process and of %d others follow", len(children))
    logger.warning("supervisor holds %s", json.dumps({"page": _page(page), "tasks": waiting_tasks()}))
    # Written in Python: the interpreter lets go of its lock, so the thread that reads standard error goes on.
    sys.stderr.write("".join(_stacks()))
    for child in children:
        logger.warning("%s: %s; its stacks:", child.plan.title, _condition(child))
        held = await child.dump()
        logger.warning("%s holds %s", child.plan.title, "no answer" if held is None else json.dumps(held))
    logger.warning("SIGUSR1: that is all")


def _condition(child: ChildProcess) -> str:
    if child.pid is None:
        return "does not run"
    age = time.monotonic() - child.last_beat
    condition = "dying" if child.is_dying else "ready" if child.is_ready else "starting"
    return f"process {child.pid}, {condition}, last heartbeat {age:.1f} s ago"


def _stacks() -> Iterator[str]:
    """Of all threads of this process."""
    for number, frame in sys._current_frames().items():
        yield f"Thread {number:#x} (most recent call last):\n"
        yield from traceback.format_stack(frame)


def _page(page: Page) -> dict[str, object]:
    """Tokens and engines by batch manager or frontend, model, and class."""
    return {
        "queued_tokens": page.queued_tokens.tolist(),
        "admitted_tokens": page.admitted_tokens.tolist(),
        "kept_back_tokens": page.kept_back_tokens.sum(axis=-1).tolist(),
        "engines_ready": page.engines_ready.tolist(),
        "tokens_per_second": page.tokens_per_second.round(1).tolist(),
    }
