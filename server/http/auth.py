"""Checks API keys, and knows which routes need none. Keeps only digests of keys."""

import hmac
import logging
from collections.abc import Callable, Mapping, Sequence

from server.requests.errors import Unauthorized
from server.settings.api_keys import ApiKey, KeyFile, digest, with_file
from server.settings.files import WatchedFiles, version_of
from server.settings.flag import SettingsError

HEALTH_PATHS = frozenset(
    {"/livez", "/readyz", "/startupz", "/health", "/ping", "/.well-known/live", "/.well-known/ready", "/-/healthz"}
)
METRICS_PATHS = frozenset({"/metrics", "/load"})  # open, unless --metrics-auth closes them
_SCHEMES = (b"bearer ", b"api-key ")

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
        for given in map(digest, sent):
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
