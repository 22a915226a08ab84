"""Delivers webhooks until they are received or a day has passed.

Nothing polls: the outbox waits for the store's next due time, or for a request that ends. The store keeps what is due,
so a process that is killed between an attempt and its note makes the attempt again, with the same id and body.

A receiver that fails is asked again after as long as its webhook is old already: 5 s, 10 s, 20 s, up to an hour. Owners
take turns, and none has all attempts that are made at a time. Of an owner's a slow receiver gets few, by how long its
last ones took; its others wait in the store, and no other owner's behind them.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from server.jobs.store.errors import StoreError
from server.jobs.store.store import RequestStore, delay_until
from server.jobs.store.turns import Turns
from server.jobs.types import Delivery
from server.jobs.webhooks.body import webhook_body
from server.jobs.webhooks.delivery import Outcome, Sender
from server.jobs.webhooks.signature import Secret, signed_headers

MAX_PARALLEL = 32  # attempts at a time; the Sender has as many connections
MAX_TAKEN = 8  # webhooks that are read from the store at once, with their results
MIN_PAUSE, MAX_PAUSE = 5.0, 3600.0  # seconds between two attempts
GIVE_UP_SECONDS = 86_400.0  # after the request's end,
MIN_ATTEMPTS = 10  # but not before so many, as the clock may have jumped
_QUICK_SECONDS = 0.5  # a receiver that takes no longer may have all attempts
_FIRST_GUESS = 2.0  # of a receiver that is not known yet
_MIN_PER_HOST = 2
MAX_PER_OWNER = MAX_PARALLEL * 3 // 4
_STORE_PAUSE = 1.0  # after an error of the store
_MIN_WAIT = 0.25  # what else is due in the store may be late

logger = logging.getLogger("embedline.jobs")


@dataclass(slots=True)
class _Share:
    """What a receiver's host has of its owner's attempts at a time, while one is on its way or waits."""

    seconds: float = _FIRST_GUESS  # that attempts took of late
    in_flight: int = 0
    next_turn: float = 0.0  # of what has to wait; on the loop's clock, for the other one may be set back

    @property
    def most(self) -> int:
        """Attempts at a time."""
        return max(_MIN_PER_HOST, min(MAX_PARALLEL, int(MAX_PARALLEL * _QUICK_SECONDS / self.seconds)))

    def wait(self, now: float) -> float:
        """Seconds until the next one may be tried; 0 if it may now."""
        if self.in_flight < self.most:
            return 0.0
        self.next_turn = max(now, self.next_turn) + self.seconds / self.most
        return self.next_turn - now


class Outbox:
    """Run it once. After `run` was cancelled, `stop` ends the attempts that were begun.

    secrets   the secrets to sign with now
    clock     the store's
    counted   gets each outcome, for the metrics: "delivered", "failed" or "given_up"
    changed   called when an attempt has ended
    """

    def __init__(
        self,
        store: RequestStore,
        sender: Sender,
        *,
        secrets: Callable[[], list[Secret]],
        model_id: str,
        clock: Callable[[], float],
        counted: Callable[[str], None] = lambda outcome: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._secrets = secrets
        self._model_id = model_id
        self._clock = clock
        self._counted = counted
        self._changed = changed
        self._shares: dict[tuple[str, str], _Share] = {}  # by owner and host
        self._held: dict[str, int] = {}  # attempts of each owner, who had its turn longest ago first
        self._tasks: dict[asyncio.Task[None], str] = {}  # the loop holds tasks weakly
        self._free = asyncio.Semaphore(MAX_PARALLEL)

    async def run(self) -> None:
        """Deliver, for ever."""
        while True:
            try:
                await self._turn()
            except StoreError as error:
                logger.warning("webhooks wait: the store can't be read: %s", error)
                await asyncio.sleep(_STORE_PAUSE)

    async def stop(self, seconds: float) -> None:
        """Cut what has no answer after so many seconds, and make it due again, so that the next process sends it."""
        if not self._tasks:
            return
        _, cut = await asyncio.wait(self._tasks, timeout=seconds)
        left = [self._tasks[task] for task in cut]
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)
        try:
            for request_id in left:  # one that was noted as delivered meanwhile stays so
                await self._store.delivery_failed(request_id, self._clock())
        except StoreError as error:  # they are due again when their lease is over
            logger.warning("webhooks that were cut can't be made due: %s", error)
        if left:
            logger.info("%d webhook(s) had no answer yet; they are sent again after the next start", len(left))

    async def _turn(self) -> None:
        async with self._free:
            pass  # one attempt can be made
        asked = min(MAX_TAKEN, max(1, MAX_PARALLEL - len(self._tasks)))
        num_taken = await self._take(asked)
        if num_taken < asked:
            delay = delay_until(await self._store.next_due(), self._clock())
            await self._store.webhook_due(max(_MIN_WAIT, delay))

    async def _take(self, limit: int) -> int:
        """Begin what is due. In a function of its own, as results are large and it would hold them while it waits."""
        room = {owner: MAX_PER_OWNER - held for owner, held in self._held.items()}
        taken = await self._store.due_webhooks(limit, Turns(dict(self._held), room))
        for delivery in taken:
            await self._begin(delivery)
        return len(taken)

    async def _begin(self, delivery: Delivery) -> None:
        loop = asyncio.get_running_loop()
        name = (delivery.owner, urlsplit(delivery.endpoint).netloc)
        share = self._shares.setdefault(name, _Share())
        if delay := share.wait(loop.time()):
            await self._store.delivery_failed(delivery.request_id, self._clock() + delay)
            return
        await self._free.acquire()
        share.in_flight += 1
        self._held[delivery.owner] = self._held.pop(delivery.owner, 0) + 1  # the last from now on
        task = loop.create_task(self._attempt(delivery, share))
        self._tasks[task] = delivery.request_id
        task.add_done_callback(self._tasks.pop)

    async def _attempt(self, delivery: Delivery, share: _Share) -> None:
        loop = asyncio.get_running_loop()
        body = webhook_body(delivery, model_id=self._model_id, deployment_id=self._model_id)
        delivery = replace(delivery, result=None)  # it may be many times as large as the body
        headers = signed_headers(
            self._secrets(), request_id=delivery.request_id, timestamp=int(self._clock()), body=body
        )
        began = loop.time()
        try:
            outcome = await self._sender.send(
                delivery.endpoint, [(b"content-type", b"application/json"), *headers], body
            )
            share.seconds = (share.seconds + max(0.001, loop.time() - began)) / 2
            await self._note(delivery, outcome)
        except StoreError as error:  # it is due again when its lease is over
            logger.warning("webhook of %s: what became of it can't be kept: %s", delivery.request_id, error)
        finally:
            share.in_flight -= 1
            self._held[delivery.owner] -= 1
            self._forget_idle()
            self._free.release()
            self._changed()

    def _forget_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for name in [name for name, share in self._shares.items() if not share.in_flight and share.next_turn <= now]:
            del self._shares[name]
        for owner in [owner for owner, held in self._held.items() if not held]:
            del self._held[owner]

    async def _note(self, delivery: Delivery, outcome: Outcome) -> None:
        if outcome.delivered:
            self._counted("delivered")
            await self._store.delivered(delivery.request_id)
            return
        next_attempt = next_attempt_at(delivery, self._clock()) if outcome.retries else None
        self._counted("failed" if next_attempt is not None else "given_up")
        words = "is tried again" if next_attempt is not None else "is given up"
        logger.info("webhook of %s failed and %s: %s", delivery.request_id, words, outcome.reason)
        await self._store.delivery_failed(delivery.request_id, next_attempt)


def next_attempt_at(delivery: Delivery, now: float) -> float | None:
    """When a webhook that failed now is tried again; None when it has been tried long enough."""
    age = now - delivery.ended_at
    if age > GIVE_UP_SECONDS and delivery.num_attempts >= MIN_ATTEMPTS:
        return None
    return now + min(MAX_PAUSE, max(MIN_PAUSE, age))
