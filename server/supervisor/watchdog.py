"""Kills what is alive but stuck, so that it is started again. Busy and stuck differ by the heartbeat."""

import asyncio
import logging
import time
from collections.abc import Sequence

import numpy as np

from server.supervisor.child import Member
from wire import control
from wire.page import Page

_LOADING_FACTOR = 12  # imports and loading may hold the interpreter for long
_SLOWER_THAN_PREDICTED = 3  # a batch that takes so many times what its tokens should is stuck

logger = logging.getLogger("embedline.supervisor")


class Watchdog:
    """Silent for `heartbeat_timeout` seconds, or on one batch for `batch_timeout` and 3 times what is predicted."""

    def __init__(self, page: Page, *, heartbeat_timeout: float, batch_timeout: float) -> None:
        self._page = page
        self._heartbeat_timeout = heartbeat_timeout
        self._batch_timeout = batch_timeout

    async def run(self, members: Sequence[Member]) -> None:
        """Look at all members twice a second, for ever."""
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(control.HEARTBEAT_SECONDS)
            now = time.monotonic()
            was_asleep = now - looked_at > 2 * control.HEARTBEAT_SECONDS  # itself stopped: nobody's silence counts
            looked_at = now
            for member in members:
                if was_asleep:
                    member.last_beat = max(member.last_beat, now)
                elif member.pid is not None and (why := self.why_stuck(member, now)):
                    logger.error("%s is stuck and will be killed: %s", member.plan.title, why)
                    member.kill()

    def why_stuck(self, member: Member, now: float) -> str | None:
        """None while it is well."""
        patience = self._heartbeat_timeout * (1 if member.is_ready else _LOADING_FACTOR)
        if now - member.last_beat > patience:
            return f"no sign of life for {now - member.last_beat:.1f} s"
        if member.busy is not None:
            seconds = now - member.busy["since"]
            if seconds > self._longest_batch(member):
                return f"one batch for {seconds:.1f} s"
        return None

    def _longest_batch(self, member: Member) -> float:
        """Seconds. The page has the rate of a batch manager's engines together; the slowest manager's counts.

        A batch has one stream of its engine's.
        """
        assert member.busy is not None
        model = slice(None) if member.plan.model is None else member.plan.model
        rates = self._page.tokens_per_second[:, model] / np.maximum(self._page.engines_ready[:, model], 1)
        slowest = float(rates[rates > 0].min(initial=float("inf")))
        num_tokens, streams = int(member.busy["tokens"]), int(member.busy["streams"])
        return max(self._batch_timeout, _SLOWER_THAN_PREDICTED * num_tokens * streams / slowest)
