"""Checks by which name a request calls this server, and from which web page it comes; tells browsers which may ask.

A browser lets any web page send a plain-text POST to localhost. If the page's own name resolves to 127.0.0.1 (DNS
rebinding), it can read the answer too. The Host and Origin headers, which no page can forge, tell such requests from
those of this machine's programs. Where requests need an API key, a page can do nothing without it.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from starlette.middleware.cors import CORSMiddleware

from server.http.auth import is_health
from server.http.body import ASGIApp
from server.requests.errors import Forbidden
from server.settings.origins import ANY_ORIGIN, origins_pattern, spelled_origin

ANY = "*"
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[^\[\]:]+)(:[0-9]*)?")
_ORIGIN = re.compile(rb"https?://(.+)")
_CACHED = 64
_CORS_METHODS = ("GET", "POST", "DELETE")
# The headers of an answer that a web page may read.
_CORS_HEADERS = (
    "metadata",
    "retry-after",
    "x-compute-characters",
    "x-compute-time",
    "x-compute-tokens",
    "x-compute-type",
    "x-embedline-dtype",
    "x-embedline-endianness",
    "x-embedline-failed-inputs",
    "x-embedline-joined",
    "x-embedline-offsets",
    "x-embedline-prompt-tokens",
    "x-embedline-scale",
    "x-embedline-shape",
    "x-embedline-token-ids",
    "x-embedline-truncated-inputs",
    "x-inference-time",
    "x-queue-time",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-request-id",
    "x-tokenization-time",
    "x-total-time",
)


def answered_hosts(allowed: Sequence[str], *, hostname: str, address: str, has_keys: bool) -> tuple[str, ...] | None:
    """The hosts that a server at this address answers to, besides loopback; None = any.

    allowed   what --allowed-hosts names
    hostname  what --hostname says, which may be another name of the address
    """
    if ANY in allowed:
        return None
    if allowed:
        return tuple(allowed)
    return (hostname,) if is_loopback(address) and not has_keys else None


class Hosts:
    """Decides which requests may come in. Health is for everybody."""

    def __init__(self, names: Sequence[str] | None, *, origins: Sequence[str] = ()) -> None:
        """`names` as `answered_hosts` has them; `origins` are web pages that may send requests, or *."""
        self._names = None if names is None else frozenset(map(_plain, names))
        self._takes_all = ANY_ORIGIN in origins
        self._origins = re.compile(origins_pattern(list(map(spelled_origin, origins))).encode())
        # Clients send the same few, so that parsing them is rare.
        self._answers_to = lru_cache(_CACHED)(self._is_answered)
        self._takes_from = lru_cache(_CACHED)(self._is_taken)

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raises Forbidden. A request without a Host or an Origin is no browser's."""
        if self._names is None:
            return
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        is_host_right = host == b"" or self._answers_to(host)
        if (is_host_right and (origin is None or self._takes_from(origin))) or is_health(method, path):
            return
        if not is_host_right:
            raise Forbidden(
                "the Host header names a server that this one is not: it answers to localhost, and to what "
                "--allowed-hosts names",
                param="host",
            )
        raise Forbidden(
            "web pages of this origin may not use this server: allow the origin with --cors-allow-origin, or its host "
            "with --allowed-hosts",
            param="origin",
        )

    def _is_answered(self, host: bytes) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None or self._names is None:
            return False
        name = _plain(parts[1].decode("latin-1"))
        return name in self._names or is_loopback(name)

    def _is_taken(self, origin: bytes) -> bool:
        """Whether it is an allowed origin, or of a host that is answered to."""
        if self._takes_all or self._origins.fullmatch(origin):
            return True
        parts = _ORIGIN.fullmatch(origin)
        return parts is not None and self._is_answered(parts[1])


def is_loopback(host: str) -> bool:
    """Whether a name or an address can only be of this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _plain(host: str) -> str:
    """One spelling for each host: in lower case, without a final dot, an address in its short form."""
    host = host.lower().removesuffix(".")
    try:
        return ipaddress.ip_address(host.strip("[]")).compressed
    except ValueError:
        return host


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let web pages of these origins ask; without any, the application itself. Preflights need no API key."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=[ANY_ORIGIN] if ANY_ORIGIN in origins else (),
        allow_origin_regex=origins_pattern(list(map(spelled_origin, origins))),
        allow_methods=_CORS_METHODS,
        allow_headers=["*"],
        expose_headers=_CORS_HEADERS,
    )
