"""Webhooks: who signs them, what they say, one attempt, and the retries until they are received or a day has passed.

Nothing polls: the outbox waits for the store's next due time, or for a request that ends. The store keeps what is due,
so a process that is killed between an attempt and its note makes the attempt again, with the same id and body.

A receiver checks Baseten's signature of the body, or Standard Webhooks' of id, time and body; both are sent.

A receiver that fails is asked again after as long as its webhook is old already: 5 s, 10 s, 20 s, up to an hour. Owners
take turns, and none has all attempts that are made at a time. Of an owner's a slow receiver gets few, by how long its
last ones took; its others wait in the store, and no other owner's behind them.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import urljoin, urlsplit

import httpcore
import msgspec

from server.features.jobs.store.store import RequestStore, StoreError, Turns, delay_until
from server.features.jobs.types import Delivery, Result
from server.features.jobs.webhook_addresses import AddressRefused, AddressRules, CheckedNetwork
from server.settings.files import WatchedFiles, read_text, version_of
from server.settings.flag import SettingsError

MAX_PARALLEL = 32  # attempts at a time; the Sender has as many connections
MAX_TAKEN = 8  # webhooks that are read from the store at once, with their results
MAX_PER_OWNER = MAX_PARALLEL * 3 // 4
MIN_PAUSE, MAX_PAUSE = 5.0, 3600.0  # seconds between two attempts
GIVE_UP_SECONDS = 86_400.0  # after the request's end,
MIN_ATTEMPTS = 10  # but not before so many, as the clock may have jumped
_QUICK_SECONDS = 0.5  # a receiver that takes no longer may have all attempts
_FIRST_GUESS = 2.0  # of a receiver that is not known yet
_MIN_PER_HOST = 2
_STORE_PAUSE = 1.0  # after an error of the store
_MIN_WAIT = 0.25  # what else is due in the store may be late
MAX_DATA_BYTES = 4 << 20  # of a result; a larger one is fetched by its owner
_MAX_REDIRECTS = 3
_REPEATS = (307, 308)  # the redirects that ask for the same POST once more
_GONE = 410
# Read so that the connection can be used again; what is longer, slower or broken costs the connection alone.
_MAX_ANSWER_BYTES, _MAX_ANSWER_SECONDS = 64 * 1024, 0.5
_KEPT_SECONDS = 5.0
_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64  # Standard Webhooks' bounds of a secret
_MAX_SECRETS = 2
_MAX_SECRETS_BYTES = 4096
Headers = list[tuple[bytes, bytes]]
logger = logging.getLogger("embedline.jobs")


@dataclass(frozen=True, slots=True)
class Secret:
    """One secret in both readings; neither is ever shown.

    It is written as `whsec_` and base64, as Standard Webhooks spells it. That scheme signs with the decoded bytes,
    Baseten with the text as it stands.
    """

    text: bytes = field(repr=False)  # with its prefix
    key: bytes = field(repr=False)  # decoded


class SecretFile:
    """The secrets of a file, read again when it changes. A file that became wrong is logged, and the old ones stay.

    Two may be valid at once, so that receivers can change over while the server runs.
    """

    def __init__(self, path: str) -> None:
        """Raises SettingsError."""
        self._path = path
        self._watched = WatchedFiles({path: version_of(path)})
        self._secrets = read_secrets(path)

    def secrets(self) -> list[Secret]:
        if self._watched.have_changed():
            try:
                self._secrets = read_secrets(self._path)
            except SettingsError as error:
                logger.error("webhooks are still signed with the secrets from before: %s", error)
        return self._secrets


def read_secrets(path: str) -> list[Secret]:
    """The secrets of a file: one a line, the newest first; empty lines and those that begin with # are left out.

    Raises SettingsError, which names the line and never the secret.
    """
    flag = "--jobs-webhook-secrets"
    text = read_text(path, name=flag, max_bytes=_MAX_SECRETS_BYTES)
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    secrets = [_secret(line, where=f"{flag}, line {number}") for number, line in lines if line and line[0] != "#"]
    if not 1 <= len(secrets) <= _MAX_SECRETS:
        raise SettingsError(f"{flag} must have one secret, or two while they are rotated; it has {len(secrets)}")
    return secrets


def _secret(line: str, *, where: str) -> Secret:
    try:
        key = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not line.startswith(_PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise SettingsError(f"{where}: a secret is {_PREFIX} and {_MIN_BYTES} to {_MAX_BYTES} bytes in base64")
    return Secret(line.encode(), key)


def signed_headers(secrets: Sequence[Secret], *, request_id: str, timestamp: int, body: bytes) -> Headers:
    """The headers of one attempt; without secrets, only those that name it.

    request_id  the same for each attempt, so that a receiver can tell a repetition
    timestamp   unix seconds of this attempt; receivers refuse old ones
    """
    headers = [
        (b"x-baseten-request-id", request_id.encode()),
        (b"webhook-id", request_id.encode()),
        (b"webhook-timestamp", b"%d" % timestamp),
    ]
    if secrets:
        signed = b"%s.%d.%s" % (request_id.encode(), timestamp, body)
        hexadecimal = [hmac.digest(secret.text, body, "sha256").hex().encode() for secret in secrets]
        encoded = [base64.b64encode(hmac.digest(secret.key, signed, "sha256")) for secret in secrets]
        headers.append((b"x-baseten-signature", b",".join(b"v1=" + one for one in hexadecimal)))
        headers.append((b"webhook-signature", b" ".join(b"v1," + one for one in encoded)))
    return headers


def webhook_body(delivery: Delivery) -> bytes:
    """JSON without spaces, as Baseten has it: made of what the store keeps, so the same bytes on each attempt.

    `data` is the route's answer. An answer that is not JSON is an object with `content_type` and `base64`; one of more
    than MAX_DATA_BYTES is an object with `bytes` and the `path` where its owner gets it.
    """
    body = {
        "request_id": delivery.request_id,
        "model_id": "embedline",
        "deployment_id": "embedline",
        "type": "async_request_completed",
        "time": datetime.fromtimestamp(delivery.ended_at, UTC),
        "data": _data(delivery.request_id, delivery.result),
        "errors": [{"code": error.code, "message": error.message} for error in delivery.errors],
    }
    return msgspec.json.encode(body)


def _data(request_id: str, result: Result | None) -> object:
    if result is None:
        return None
    if len(result.body) > MAX_DATA_BYTES:
        return {"bytes": len(result.body), "path": f"/async_request/{request_id}/result"}
    if result.content_type.partition(";")[0].strip() == "application/json":
        return msgspec.Raw(result.body)
    return {"content_type": result.content_type, "base64": base64.b64encode(result.body).decode()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt."""

    delivered: bool
    retries: bool = True  # False = no later attempt can be different
    reason: str = ""  # for logs; it has nothing of the receiver's answer in it


class Sender:
    """Makes one attempt: one POST with a time limit, redirects followed to allowed addresses alone.

    Connections are kept for a few seconds, in case the same receiver is next.

    timeout_s  of a whole attempt: name, connection, redirects, answer
    """

    def __init__(
        self, rules: AddressRules, *, max_connections: int, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._rules = rules
        self._timeout_s = timeout_s
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=max_connections,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=CheckedNetwork(rules),
        )

    async def send(self, url: str, headers: Headers, body: bytes) -> Outcome:
        """Sends the webhook once; never raises for what a receiver does."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, headers, body)
        except TimeoutError:
            return Outcome(False, reason=f"no answer within {self._timeout_s:g} s")
        except AddressRefused as error:
            return Outcome(False, retries=False, reason=str(error))
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            return Outcome(False, reason=type(error).__name__)

    async def _follow(self, url: str, headers: Headers, body: bytes) -> Outcome:
        for _ in range(_MAX_REDIRECTS + 1):
            status, location = await self._post(url, headers, body)
            if 200 <= status < 300:
                return Outcome(True)
            if status not in _REPEATS or not location:
                return Outcome(False, retries=status != _GONE, reason=f"status {status}")
            url = _joined(url, location)
        return Outcome(False, reason="too many redirects")

    async def _post(self, url: str, headers: Headers, body: bytes) -> tuple[int, str]:
        """The status, and where a redirect leads. Raises AddressRefused and what httpcore raises."""
        self._rules.check_url(url)
        sent = [(b"host", urlsplit(url).netloc.encode()), (b"content-length", b"%d" % len(body)), *headers]
        async with self._pool.stream("POST", url, headers=sent, content=body) as response:
            found = {name.lower(): value for name, value in response.headers}
            await _read_away(response)
            return response.status, found.get(b"location", b"").decode("latin-1")

    async def close(self) -> None:
        await self._pool.aclose()


async def _read_away(response: httpcore.Response) -> None:
    """The body of an answer, for the status alone tells whether a webhook was received."""
    size = 0
    try:
        async with asyncio.timeout(_MAX_ANSWER_SECONDS):
            async for part in response.aiter_stream():
                size += len(part)
                if size > _MAX_ANSWER_BYTES:
                    return
    except (httpcore.NetworkError, httpcore.ProtocolError, TimeoutError):
        return


def _joined(url: str, location: str) -> str:
    """The URL that a redirect leads to. Raises AddressRefused."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise AddressRefused("a webhook was redirected to a URL that can't be read") from None


@dataclass(slots=True)
class _Share:
    """The share that a receiver's host has of its owner's attempts at a time, while one is on its way or waits."""

    seconds: float = _FIRST_GUESS  # that attempts took of late
    in_flight: int = 0
    next_turn: float = 0.0  # of what has to wait; on the loop's clock, for the other one may be set back

    @property
    def most(self) -> int:
        """The most attempts at a time."""
        return max(_MIN_PER_HOST, min(MAX_PARALLEL, int(MAX_PARALLEL * _QUICK_SECONDS / self.seconds)))

    def wait(self, now: float) -> float:
        """Seconds until the next one may be tried; 0 if it may now."""
        if self.in_flight < self.most:
            return 0.0
        self.next_turn = max(now, self.next_turn) + self.seconds / self.most
        return self.next_turn - now


class Outbox:
    """Decides when which webhook is tried.

    Run it once. After `run` was cancelled, `stop` ends the attempts that were begun.

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
        clock: Callable[[], float],
        counted: Callable[[str], None] = lambda outcome: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._sender = sender
        self._secrets = secrets
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
        body = webhook_body(delivery)
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
