"""Runs what was accepted: claims requests, sends each to this very server as a client would, keeps what it answered.

Nothing here decides for good before the store has it: a process that is killed leaves its requests in progress, and its
successor queues them again. So a request may be computed twice, but it ends once. How it ends is told in Baseten's
words. What falls due without anybody asking is done here too.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from server.features.jobs.http_client import AnswerTooLarge, ConnectionLost, HttpAnswer, SelfClient
from server.features.jobs.pace import Pace, Postponed, SendQueue
from server.features.jobs.store.store import RequestStore, StoreError, Turns, delay_until
from server.features.jobs.types import Claimed, Finished, JobError, Result, Status
from wire.metrics import Recorder

_MAX_RESULT_BYTES = 64 << 20  # of an answer: what has more belongs into a batch
_MAX_RUN_SECONDS = 3600.0  # of a request, all attempts and waits together
_STORE_SECONDS = 1.0  # until a store that failed is asked again
_IDLE_SECONDS = 60.0  # to wait for a request at a time
_CLAIMS_PER_PLACE = 2  # requests in memory for each that may be sent, as some wait for their next attempt
_RETRY_SECONDS = 5.0  # of housekeeping, after the store failed
_LEAST_SECONDS = 0.05  # between two of its looks
_MOST_SECONDS = 15.0  # claims on a store that several servers share are renewed so often
_CODES = {
    **dict.fromkeys((400, 413, 415, 422), "MODEL_INVALID_INPUT"),
    404: "MODEL_DOES_NOT_EXIST",
    504: "MODEL_PREDICT_TIMEOUT",
    **dict.fromkeys((424, 500, 502), "MODEL_PREDICT_ERROR"),
}
_KEPT_HEADERS = ("x-embedline-", "x-compute-", "metadata", "content-encoding")  # what their names begin with
_MAX_MESSAGE = 500  # characters
_T = TypeVar("_T")
logger = logging.getLogger("embedline.server")


class Runner:
    """Run `run` and `keep_house` once; `may_claim` says whether new requests are begun."""

    def __init__(
        self,
        store: RequestStore,
        client: SelfClient,
        pace: Pace,
        *,
        most: int,
        metrics: Recorder,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`most` requests are sent at a time. `changed` is called when the numbers of the queue have changed."""
        self.may_claim = asyncio.Event()
        self._store = store
        self._client = client
        self._pace = pace
        self._max_claimed = _CLAIMS_PER_PLACE * most
        self._metrics = metrics
        self._changed = changed
        self._running: dict[asyncio.Task[None], Claimed] = {}
        self._held: dict[str, int] = {}  # of each owner, who had its turn longest ago first
        self._queues: dict[str, SendQueue] = {}  # of the same owners

    @property
    def num_running(self) -> int:
        """The number of requests that are claimed."""
        return len(self._running)

    async def run(self) -> None:
        """Claim and run until cancelled."""
        while True:
            await self.may_claim.wait()
            self._pace.changed.clear()
            try:
                claimed = await self._store.claim(*self._wanted())
                if not claimed:
                    await self._until_more()
            except StoreError as error:
                logger.error("the store of --jobs gives no requests: %s", error)
                await asyncio.sleep(_STORE_SECONDS)
                continue
            for one in claimed:
                self._begin(one)
            if claimed:
                self._changed()
                await asyncio.sleep(0)  # they ask for their turns before it is asked how many are free

    async def stop(self) -> None:
        """Put back what has not ended."""
        running = dict(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        left = [claimed.request_id for task, claimed in running.items() if task.cancelled()]
        if left:
            await self._store.release(left)
            logger.info("%d async request(s) go on after the next start", len(left))

    async def keep_house(self) -> None:
        """Ends requests that waited too long, forgets results whose time is over, and renews the claims of those that
        run. Sleeps until the store says that something is due. Until cancelled."""
        while True:
            try:
                await self._tidy()
                delay = delay_until(await self._store.next_due(), time.time(), longest=_MOST_SECONDS)
            except StoreError as error:
                logger.error("the store of --jobs can't be tidied: %s", error)
                delay = _RETRY_SECONDS
            await asyncio.sleep(max(delay, _LEAST_SECONDS))

    async def _tidy(self) -> None:
        if self._running:
            await self._store.renew([claimed.request_id for claimed in self._running.values()])
        if num_expired := await self._store.expire():
            self._metrics.count("embedline_jobs_total", "expired", by=num_expired)
            logger.warning("%d async request(s) expired: they waited longer than they may", num_expired)
            self._changed()
        if await self._store.purge():
            self._changed()

    def _wanted(self) -> tuple[int, Turns]:
        """The number of requests to claim now, and whose turn it is.

        Those of one owner may fill all places, while it waits for its ceiling say. So one that has none here may always
        claim one, and an owner whose requests are refused loses its places one after another.
        """
        free = min(self._pace.num_free, self._max_claimed - len(self._running))
        known = {*self._held, *self._pace.owners}
        room = {owner: 0 if self._pace.is_paused(owner) else self._places_left(owner) for owner in known}
        if free > 0:
            return free, Turns(dict(self._held), room)
        return 1, Turns(dict(self._held), {**room, **dict.fromkeys(self._held, 0)})

    def _places_left(self, owner: str) -> int:
        return _CLAIMS_PER_PLACE * self._pace.limit(owner) - self._held.get(owner, 0)

    async def _until_more(self) -> None:
        """Waits until there is something new, or more of what there was may be claimed."""
        loop = asyncio.get_running_loop()
        signs = [self._store.claimable(_IDLE_SECONDS), self._pace.changed.wait()]
        waits = [loop.create_task(sign) for sign in signs]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _begin(self, claimed: Claimed) -> None:
        self._held[claimed.owner] = self._held.pop(claimed.owner, 0) + 1  # the last from now on
        self._queues.setdefault(claimed.owner, SendQueue(claimed.owner))
        task = asyncio.get_running_loop().create_task(self._run_one(claimed))
        self._running[task] = claimed
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        owner = self._running.pop(task).owner
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner], self._queues[owner]
        self._pace.changed.set()
        self._changed()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # in the loop's handler, which ends this process: its successor queues the request again

    async def _run_one(self, claimed: Claimed) -> None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(_MAX_RUN_SECONDS):
                outcome = await self._outcome(claimed)
        except TimeoutError:
            outcome = failed("MODEL_PREDICT_TIMEOUT", f"it ran for more than {_MAX_RUN_SECONDS:.0f} s")
        except Postponed:
            return await self._kept(claimed.request_id, "put back", lambda: self._store.release([claimed.request_id]))
        if await self._kept(claimed.request_id, "ended", lambda: self._store.finish(claimed.request_id, outcome)):
            self._note(claimed, outcome, time.perf_counter() - began)

    def _note(self, claimed: Claimed, outcome: Finished, seconds: float) -> None:
        word = "succeeded" if outcome.status is Status.SUCCEEDED else "failed"
        self._metrics.count("embedline_jobs_total", word)
        self._metrics.observe("embedline_jobs_run_seconds", value=seconds)
        log = logger.debug if outcome.status is Status.SUCCEEDED else logger.warning
        why = "".join(f": {error.code}: {error.message}" for error in outcome.errors)
        log("async request %s %s after %.3f s%s", claimed.request_id, word, seconds, why)

    async def _kept(self, request_id: str, what: str, keep: Callable[[], Awaitable[_T]]) -> _T:
        """Tries until the store has it: there may be no room on the disk for a while, and then the log may have
        none."""
        is_noted = False
        while True:
            try:
                return await keep()
            except StoreError as error:
                if not is_noted:
                    logger.error("async request %s has %s and can't be kept yet: %s", request_id, what, error)
                is_noted = True
            await asyncio.sleep(_STORE_SECONDS)

    async def _outcome(self, claimed: Claimed) -> Finished:
        """The end of a request. Raises Postponed."""
        try:
            answer = await self._client.ask(
                self._queues[claimed.owner],
                claimed.route,
                claimed.body,
                claimed.request_id,
                headers=claimed.headers,
                retry=claimed.retry,
                max_bytes=_MAX_RESULT_BYTES,
                may_wait=lambda: self._places_left(claimed.owner) >= 0,
            )
        except AnswerTooLarge as error:
            return failed("MODEL_INVALID_INPUT", f"{error}; the most are {_MAX_RESULT_BYTES}")
        except ConnectionLost:
            return failed("MODEL_PREDICT_ERROR", "the server's process ended at every attempt")
        return outcome_of(answer)


def outcome_of(answer: HttpAnswer) -> Finished:
    """The end of a request with this answer. Its errors have the answer too, as the route gave it."""
    result = Result(
        status_code=answer.status,
        headers=tuple((name, value) for name, value in answer.headers.items() if name.startswith(_KEPT_HEADERS)),
        body=answer.body,
        content_type=answer.headers.get("content-type", "application/octet-stream"),
    )
    if answer.status == 200:
        return Finished(Status.SUCCEEDED, result)
    code = _CODES.get(answer.status, "INTERNAL_SERVER_ERROR")
    return Finished(Status.FAILED, result, (JobError(code, f"status {answer.status}: {_message(answer.body)}"),))


def failed(code: str, message: str) -> Finished:
    """The end of a request that got no answer."""
    return Finished(Status.FAILED, errors=(JobError(code, message),))


def _message(body: bytes) -> str:
    """The message of an error in any dialect's shape; they never repeat what the client sent."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        fields = {}
    texts = (text for text in (fields.get("message"), fields.get("error")) if isinstance(text, str))
    return next(texts, "an error without a message")[:_MAX_MESSAGE]
