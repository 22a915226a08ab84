"""One attempt to deliver a webhook: one POST with a time limit, redirects followed to allowed addresses alone."""

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpcore

from server.jobs.webhooks.addresses import AddressRefused, AddressRules, CheckedNetwork
from server.jobs.webhooks.signature import Headers

_MAX_REDIRECTS = 3
_REPEATS = (307, 308)  # the redirects that ask for the same POST once more
_GONE = 410
# Read so that the connection can be used again; what is longer, slower or broken costs the connection alone.
_MAX_ANSWER_BYTES, _MAX_ANSWER_SECONDS = 64 * 1024, 0.5
_KEPT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    delivered: bool
    retries: bool = True  # False = no later attempt can be different
    reason: str = ""  # for logs; it has nothing of the receiver's answer in it


class Sender:
    """Delivers over connections that are kept for a few seconds, in case the same receiver is next.

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
        """Never raises for what a receiver does."""
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
    """Where a redirect leads. Raises AddressRefused."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise AddressRefused("a webhook was redirected to a URL that can't be read") from None
