"""Runs what was accepted: claims requests, sends each to this very server as a client would, keeps what it answered.

Nothing here decides for good before the store has it: a process that is killed leaves its requests in progress, and its
successor queues them again. So a request may be computed twice, but it ends once.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from server.jobs import outcomes
from server.jobs.http_client import AnswerTooLarge, ConnectionLost, HttpAnswer, HttpConnection
from server.jobs.outcomes import BUSY, FAILED_FOR_NOW
from server.jobs.pace import Pace
from server.jobs.store.errors import StoreError
from server.jobs.store.store import RequestStore
from server.jobs.types import Claimed, Finished, Status
from wire.metrics import Recorder

_MAX_RESULT_BYTES = 64 << 20  # of an answer: what has more belongs into a batch
_MAX_RUN_SECONDS = 3600.0  # of a request, all attempts and waits together
_MAX_LOST = 10  # connections that ended before a request's answer: its frontend died each time
_LOST_SECONDS = 0.2  # until the next is tried, doubling; restarting a frontend takes about a second
_STORE_SECONDS = 1.0  # until a store that failed is asked again
_IDLE_SECONDS = 60.0  # to wait for a request at a time
_CLAIMS_PER_PLACE = 2  # requests in memory for each that may be sent, as some wait for their next attempt

logger = logging.getLogger("embedline.server")


@dataclass(frozen=True, slots=True)
class Target:
    """The server that computes: this one."""

    path: str  # of the Unix socket
    secret: str  # which lets this process act for an API key


class Runner:
    """Call `run` once; `may_claim` says whether new requests are begun."""

    def __init__(
        self,
        store: RequestStore,
        target: Target,
        pace: Pace,
        *,
        most: int,
        metrics: Recorder,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`most` requests are sent at a time. `changed` is called when the numbers of the queue have changed."""
        self.may_claim = asyncio.Event()
        self._store = store
        self._target = target
        self._pace = pace
        self._max_claimed = _CLAIMS_PER_PLACE * most
        self._metrics = metrics
        self._changed = changed
        self._running: dict[asyncio.Task[None], str] = {}
        self._ended = asyncio.Event()
        self._idle: list[HttpConnection] = []  # connections, the latest used last

    @property
    def num_running(self) -> int:
        """Requests that are claimed."""
        return len(self._running)

    async def run(self) -> None:
        """Claim and run until cancelled."""
        while True:
            await self.may_claim.wait()
            await self._room()
            try:
                claimed = await self._store.claim(min(self._pace.num_free or 1, self._max_claimed - len(self._running)))
                if not claimed:
                    await self._store.claimable(_IDLE_SECONDS)
            except StoreError as error:
                logger.error("the store of --jobs gives no requests: %s", error)
                await asyncio.sleep(_STORE_SECONDS)
                continue
            for one in claimed:
                task = asyncio.get_running_loop().create_task(self._run_one(one))
                self._running[task] = one.request_id
                task.add_done_callback(self._done)
            if claimed:
                self._changed()

    async def stop(self) -> None:
        """Put back what has not ended."""
        running = dict(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        left = [request_id for task, request_id in running.items() if task.cancelled()]
        if left:
            await self._store.release(left)
            logger.info("%d async request(s) go on after the next start", len(left))
        for connection in self._idle:
            connection.close()

    def claimed_ids(self) -> list[str]:
        """Of the requests that run, for a store whose claims have to be renewed."""
        return list(self._running.values())

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._ended.set()
        self._changed()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # in the loop's handler, which ends this process: its successor queues the request again

    async def _room(self) -> None:
        """Until one more request could be sent, and be kept in memory."""
        while len(self._running) >= self._max_claimed:
            self._ended.clear()
            await self._ended.wait()
        async with self._pace.turn():
            pass

    async def _run_one(self, claimed: Claimed) -> None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(_MAX_RUN_SECONDS):
                outcome = await self._outcome(claimed)
        except TimeoutError:
            outcome = outcomes.failed("MODEL_PREDICT_TIMEOUT", f"it ran for more than {_MAX_RUN_SECONDS:.0f} s")
        if await self._finish(claimed.request_id, outcome):
            self._note(claimed, outcome, time.perf_counter() - began)

    def _note(self, claimed: Claimed, outcome: Finished, seconds: float) -> None:
        word = "succeeded" if outcome.status is Status.SUCCEEDED else "failed"
        self._metrics.count("embedline_jobs_total", word)
        self._metrics.observe("embedline_jobs_run_seconds", value=seconds)
        log = logger.debug if outcome.status is Status.SUCCEEDED else logger.warning
        why = "".join(f": {error.code}: {error.message}" for error in outcome.errors)
        log("async request %s %s after %.3f s%s", claimed.request_id, word, seconds, why)

    async def _finish(self, request_id: str, outcome: Finished) -> bool:
        """Until the store has it: there may be no room on the disk for a while, and then the log may have none."""
        is_noted = False
        while True:
            try:
                return await self._store.finish(request_id, outcome)
            except StoreError as error:
                if not is_noted:
                    logger.error("async request %s has ended and can't be kept yet: %s", request_id, error)
                is_noted = True
            await asyncio.sleep(_STORE_SECONDS)

    async def _outcome(self, claimed: Claimed) -> Finished:
        """Attempts that the server had no room for are not counted."""
        attempts, lost, delay = 0, 0, claimed.retry.initial_delay_ms / 1000
        while True:
            try:
                answer = await self._attempt(claimed)
            except AnswerTooLarge as error:
                return outcomes.failed("MODEL_INVALID_INPUT", f"{error}; the most are {_MAX_RESULT_BYTES}")
            except ConnectionLost:
                lost += 1
                if lost == _MAX_LOST:
                    return outcomes.failed("MODEL_PREDICT_ERROR", "the server's process ended at every attempt")
                await asyncio.sleep(_LOST_SECONDS * 2 ** min(lost, 4))
                continue
            if answer.status in BUSY:
                continue
            attempts += 1
            if answer.status not in FAILED_FOR_NOW or attempts >= claimed.retry.max_attempts:
                return outcomes.of(answer)
            await asyncio.sleep(min(delay, claimed.retry.max_delay_ms / 1000))
            delay *= 2

    async def _attempt(self, claimed: Claimed) -> HttpAnswer:
        """Raises ConnectionLost and AnswerTooLarge."""
        async with self._pace.turn():
            answer = await self._send(claimed)
            if answer.status in BUSY:
                self._pace.refused(_seconds(answer.headers.get("retry-after")))
            else:
                self._pace.answered()
            return answer

    async def _send(self, claimed: Claimed) -> HttpAnswer:
        connection = self._idle.pop() if self._idle else HttpConnection(self._target.path)
        headers = [
            *claimed.headers,
            ("x-embedline-class", "bulk"),
            ("x-embedline-jobs", self._target.secret),
            ("x-embedline-owner", claimed.owner),
            ("x-request-id", claimed.request_id),
        ]
        try:
            return await connection.post(claimed.route, headers, claimed.body, max_bytes=_MAX_RESULT_BYTES)
        finally:
            self._idle.append(connection)  # one that was lost connects again


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else 1.0
