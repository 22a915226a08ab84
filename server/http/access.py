"""Who may ask: the requests with an API key, and those that call this server by one of its names, from a web page that
may send them; tells browsers which pages may.

A browser lets any web page send a plain-text POST to localhost. If the page's own name resolves to 127.0.0.1 (DNS
rebinding), it can read the answer too. The Host and Origin headers, which no page can forge, tell such requests from
those of this machine's programs. Where requests need an API key, a page can do nothing without it. Of keys only
digests are kept.
"""

import hmac
import ipaddress
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256

from server.http.body import ASGIApp
from server.requests.errors import Forbidden, Unauthorized
from server.settings.api_keys import ApiKey, KeyFile, with_file
from server.settings.files import WatchedFiles, version_of
from server.settings.flag import SettingsError
from server.settings.origins import ANY_ORIGIN, origins_pattern, spelled_origin

HEALTH_PATHS = frozenset(
    {"/livez", "/readyz", "/startupz", "/health", "/ping", "/.well-known/live", "/.well-known/ready", "/-/healthz"}
)
METRICS_PATHS = frozenset({"/metrics", "/load"})  # open, unless --metrics-auth closes them
_SCHEMES = (b"bearer ", b"api-key ")
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

logger = logging.getLogger("embedline.server")


def is_health(method: str, path: str) -> bool:
    """Whether a request only asks whether the server is well, as anybody may."""
    return path in HEALTH_PATHS or (path == "/" and method in ("GET", "HEAD"))


class Keys:
    """The accepted keys. Every path needs one unless it is listed as open."""

    def __init__(
        self,
        keys: Sequence[ApiKey],
        *,
        metrics_auth: bool,
        file: KeyFile | None = None,
        renewed: Callable[[Sequence[ApiKey]], None] = lambda keys: None,
    ) -> None:
        """`file` is where some of the keys come from; it is read again when it has changed, and `renewed` called."""
        self._keys = keys
        self._are_metrics_open = not metrics_auth
        self._file = file
        self._renewed = renewed
        self._secrets: list[bytes] = []
        self._watched = WatchedFiles({file.path: file.version} if file else {})

    def let_act(self, secret: str) -> None:
        """Let a process of this server act for keys from now on. In place of a key its requests have the secret, a dot
        and the owner of the request that they are for."""
        self._secrets.append(secret.encode())

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> str:
        """The name of the request's key, "" if none is needed. Raises Unauthorized."""
        if not self._keys or is_health(method, path) or (path in METRICS_PATHS and self._are_metrics_open):
            return ""
        if self._file is not None and self._watched.have_changed():
            self._renew(self._file)
        sent = _given_keys(headers)
        for secret, _, owner in (given.partition(b".") for given in sent):
            if any(hmac.compare_digest(secret, one) for one in self._secrets):
                return self._name_of_owner(owner)
        found = None
        for given in (sha256(one).digest() for one in sent):
            for key in self._keys:  # always all of them, so that the time shows nothing
                if hmac.compare_digest(given, key.digest):
                    found = key.name
        if found is None:
            raise Unauthorized("send a valid API key: authorization: Bearer …")
        return found

    def owner(self, name: str) -> str:
        """The owner that async requests of the key with this name are kept under; "" where none is needed."""
        return next((key.owner for key in self._keys if key.name == name), "")

    def _name_of_owner(self, owner: bytes) -> str:
        """The name of the key that another process acts for. Raises Unauthorized, also where that key is accepted no
        more."""
        name = next((key.name for key in self._keys if key.owner.encode() == owner), None)
        if name is None:
            raise Unauthorized("the API key that this request acts for is not accepted any more")
        return name

    def _renew(self, file: KeyFile) -> None:
        """A file that is wrong leaves the keys as they were."""
        try:
            if version_of(file.path) is None:  # opening a pipe could take for ever
                raise SettingsError("--api-key-file is no file any more")
            self._keys = with_file(file.flag_keys, file.path)
        except SettingsError as error:
            logger.error("%s; the keys that were read before stay", error)
        else:
            self._renewed(self._keys)
            logger.info("requests need one of %d API key(s) from now on", len(self._keys))


def _given_keys(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """The values that may be keys: in `authorization` (Bearer, Api-Key or bare), `x-api-key` and `api-key`.

    All of them, since a proxy in between may need an `authorization` of its own.
    """
    values = [headers.get(name, b"") for name in (b"authorization", b"x-api-key", b"api-key")]
    for scheme in _SCHEMES:
        if values[0][: len(scheme)].lower() == scheme:
            values[0] = values[0][len(scheme) :].strip()
            break
    return [value for value in values if value]


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
    from starlette.middleware.cors import CORSMiddleware  # which servers without web pages need not import

    return CORSMiddleware(
        app,
        allow_origins=[ANY_ORIGIN] if ANY_ORIGIN in origins else (),
        allow_origin_regex=origins_pattern(list(map(spelled_origin, origins))),
        allow_methods=_CORS_METHODS,
        allow_headers=["*"],
        expose_headers=_CORS_HEADERS,
    )
