"""Origins of web pages, as `--cors-allow-origin` names them: a scheme and a host, perhaps a port, with stars in them.

A star in a host stands for one or more letters, digits, hyphens and underscores: never for a dot, so it stays in its
own label, and never for a colon or a slash. As a port it stands for digits.
"""

import re
from collections.abc import Collection

ANY_ORIGIN = "*"
_LABEL = r"[A-Za-z0-9_*-]+"
_ORIGIN = re.compile(rf"([a-z][a-z0-9+.-]*)://(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}|\*))?")
_USUAL_PORTS = {"http": "80", "https": "443"}  # which browsers leave out
_MAX_PORT = 65535
_NOTHING = "(?!)"
_IN_LABEL, _IN_PORT = "[A-Za-z0-9_-]+", "[0-9]+"


def spelled_origin(text: str) -> str:
    """An origin as browsers send it, stars included. Raises ValueError for one that no browser would send."""
    if text == ANY_ORIGIN:
        return text
    parts = _ORIGIN.fullmatch(text)
    if parts is None:
        raise ValueError("takes origins such as https://example.org, without a path, or *; other alphabets in punycode")
    scheme, host, port = parts.groups()
    if scheme in _USUAL_PORTS:
        host = host.lower()
        if "*" in host.rpartition(".")[2]:
            raise ValueError("takes no * in the last part of a host, which would be anybody's; * alone is every page")
    if port is not None and port.isdecimal():
        port = str(int(port))
        if int(port) > _MAX_PORT:
            raise ValueError(f"takes ports up to {_MAX_PORT}")
    return f"{scheme}://{host}" + (f":{port}" if port and port != _USUAL_PORTS.get(scheme) else "")


def origins_pattern(origins: Collection[str]) -> str:
    """A regular expression for all of them but ANY_ORIGIN; they are spelled as browsers do. It must match all."""
    return "|".join(_pattern(origin) for origin in origins if origin != ANY_ORIGIN) or _NOTHING


def _pattern(origin: str) -> str:
    before, is_any_port, _ = origin.partition(":*")
    escaped = re.escape(before).replace(r"\*", _IN_LABEL)
    return f"{escaped}:{_IN_PORT}" if is_any_port else escaped
