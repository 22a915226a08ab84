"""API keys: who may ask, and for which routes nobody is asked. Knows keys by their digests alone."""

import hmac
from collections.abc import Mapping, Sequence

from server.requests.errors import Unauthorized
from server.settings.api_keys import ApiKey, digest

HEALTH_PATHS = frozenset({"/livez", "/readyz", "/health", "/ping"})
_SCHEMES = (b"bearer ", b"api-key ")


class Keys:
    """The door: closed for every path that is not named open."""

    def __init__(self, keys: Sequence[ApiKey], *, metrics_need_a_key: bool) -> None:
        self._keys = keys
        self._open = HEALTH_PATHS if metrics_need_a_key else HEALTH_PATHS | {"/metrics"}

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> str:
        """The name of the key that was given, "" where none is needed. Raises Unauthorized."""
        if not self._keys or path in self._open or (path == "/" and method in ("GET", "HEAD")):
            return ""
        found = None
        for given in map(digest, _given(headers)):
            for key in self._keys:  # all of them, whichever it is: the time taken says nothing
                if hmac.compare_digest(given, key.digest):
                    found = key.name
        if found is None:
            raise Unauthorized("a valid API key is needed: authorization: Bearer …")
        return found


def _given(headers: Mapping[bytes, bytes]) -> list[bytes]:
    """What may be keys: in `authorization` (Bearer, Api-Key, or bare as some clients send it), `x-api-key`, `api-key`.

    All of them, since a proxy in between may need an `authorization` of its own.
    """
    values = [headers.get(name, b"") for name in (b"authorization", b"x-api-key", b"api-key")]
    for scheme in _SCHEMES:
        if values[0][: len(scheme)].lower() == scheme:
            values[0] = values[0][len(scheme) :].strip()
            break
    return [value for value in values if value]
