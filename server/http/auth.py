"""Checks API keys, and knows which routes need none. Keeps only digests of keys."""

import hmac
from collections.abc import Mapping, Sequence

from server.requests.errors import Unauthorized
from server.settings.api_keys import ApiKey, digest

HEALTH_PATHS = frozenset({"/livez", "/readyz", "/health", "/ping"})
_SCHEMES = (b"bearer ", b"api-key ")


class Keys:
    """The accepted keys. Every path needs one unless it is listed as open."""

    def __init__(self, keys: Sequence[ApiKey], *, metrics_need_a_key: bool) -> None:
        self._keys = keys
        self._open = HEALTH_PATHS if metrics_need_a_key else HEALTH_PATHS | {"/metrics"}

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> str:
        """The name of the request's key, "" if none is needed. Raises Unauthorized."""
        if not self._keys or path in self._open or (path == "/" and method in ("GET", "HEAD")):
            return ""
        found = None
        for given in map(digest, _given(headers)):
            for key in self._keys:  # always all of them, so that the time shows nothing
                if hmac.compare_digest(given, key.digest):
                    found = key.name
        if found is None:
            raise Unauthorized("send a valid API key: authorization: Bearer …")
        return found


def _given(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """All values that may be keys: in `authorization` (Bearer, Api-Key or bare), `x-api-key` and `api-key`.

    All of them, since a proxy in between may need an `authorization` of its own.
    """
    values = [headers.get(name, b"") for name in (b"authorization", b"x-api-key", b"api-key")]
    for scheme in _SCHEMES:
        if values[0][: len(scheme)].lower() == scheme:
            values[0] = values[0][len(scheme) :].strip()
            break
    return [value for value in values if value]
