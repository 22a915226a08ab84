"""Kills processes that are alive but stuck, so that they are restarted. The heartbeat tells busy from stuck."""

import asyncio
import logging
import time
from collections.abc import Sequence

import numpy as np

from server.supervisor.child import ChildProcess
from wire import control
from wire.page import Page

_LOADING_FACTOR = 12  # imports and loading may hold the interpreter for long
_SLOWER_THAN_PREDICTED = 3  # times what a batch's tokens should take; more is stuck

logger = logging.getLogger("embedline.supervisor")


class Watchdog:
    """Kills a process that is silent for `heartbeat_timeout` seconds, or whose batch takes more than `batch_timeout`
    seconds and three times what its tokens should take.
    """

    def __init__(self, page: Page, *, heartbeat_timeout: float, batch_timeout: float) -> None:
        self._page = page
        self._heartbeat_timeout = heartbeat_timeout
        self._batch_timeout = batch_timeout

    async def run(self, children: Sequence[ChildProcess]) -> None:
        """Check all children twice a second until cancelled."""
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(control.HEARTBEAT_SECONDS)
            now = time.monotonic()
            was_asleep = now - looked_at > 2 * control.HEARTBEAT_SECONDS  # so silence means nothing
            looked_at = now
            for child in children:
                if was_asleep:
                    child.last_beat = max(child.last_beat, now)
                elif child.pid is not None and not child.is_dying and (why := self.why_stuck(child, now)):
                    logger.error("%s is stuck and will be killed: %s", child.plan.title, why)
                    child.kill()

    def why_stuck(self, child: ChildProcess, now: float) -> str | None:
        """None while it is not stuck."""
        patience = self._heartbeat_timeout * (1 if child.is_ready else _LOADING_FACTOR)
        if now - child.last_beat > patience:
            return f"no heartbeat for {now - child.last_beat:.1f} s"
        if child.busy is not None:
            seconds = now - child.busy["since"]
            if seconds > self._longest_batch(child):
                return f"the same batch for {seconds:.1f} s"
        return None

    def _longest_batch(self, child: ChildProcess) -> float:
        """Seconds. The page has the rate of a batch manager's engines together; the slowest manager's counts.

        A batch has one stream of its engine's.
        """
        assert child.busy is not None
        model = slice(None) if child.plan.model is None else child.plan.model
        rates = self._page.tokens_per_second[:, model] / np.maximum(self._page.engines_ready[:, model], 1)
        slowest = float(rates[rates > 0].min(initial=float("inf")))
        num_tokens, streams = int(child.busy["tokens"]), int(child.busy["streams"])
        return max(self._batch_timeout, _SLOWER_THAN_PREDICTED * num_tokens * streams / slowest)
