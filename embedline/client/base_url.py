"""Base URLs, as people write them, to where connections go."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_UNIX = "unix"
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True, slots=True)
class Origin:
    """The address of connections, and the prefix of each path."""

    host: str
    port: int
    is_tls: bool
    prefix: str  # of paths; "" or begins with a slash and ends without one
    unix_path: str = ""  # of the socket of a server on this machine, in place of host and port

    @property
    def host_header(self) -> str:
        """The value of the header `host`."""
        if self.unix_path:
            return self.host
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host  # zones are ours (RFC 6874, 3)
        return host if self.port == _PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL as messages name it."""
        if self.unix_path:
            return f"{_UNIX}://{self.unix_path}"
        return f"{'https' if self.is_tls else 'http'}://{self.host_header}{self.prefix}"


def read_base_urls(urls: str | Sequence[str]) -> list[Origin]:
    """One or several. Raises TypeError and ValueError."""
    given = [urls] if isinstance(urls, str) else list(urls) if isinstance(urls, Iterable) else [urls]
    for url in given:
        if not isinstance(url, str):
            raise TypeError(
                f"base_url must be a text like http://host:8080 or a list of them, not {type(url).__name__}"
            )
    return [read_base_url(url) for url in given]


def read_base_url(url: str) -> Origin:
    """A base URL with or without /v1 at its end. Raises ValueError; its message has nothing of a password."""
    if url.startswith(f"{_UNIX}:"):
        return _read_unix(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("base_url must be like http://host:8080") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("base_url must be like http://host:8080")
    if parts.username is not None or parts.password is not None:
        raise ValueError("base_url must have no user and password; give the key as api_key")
    if parts.query or parts.fragment:
        raise ValueError("base_url must have no query and no fragment")
    if not (parts.path.isascii() and parts.path.isprintable() and " " not in parts.path):
        raise ValueError("base_url must have a path of printable ASCII")
    host = _ascii(parts.hostname)
    if ":" in host:
        host = host.replace("%25", "%", 1)  # before a zone (RFC 6874, 2)
    if not _HOST.fullmatch(host) or port == 0:
        raise ValueError("base_url must have a host name or an address, and a port from 1 to 65535 if any")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Origin(host, port or _PORTS[parts.scheme], parts.scheme == "https", prefix)


def _read_unix(url: str) -> Origin:
    """unix:///run/embedline.sock. Raises ValueError."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or "\0" in path or parts.query or parts.fragment:
        raise ValueError("base_url must be like unix:///run/embedline.sock, with the whole path of the socket")
    return Origin("localhost", 0, False, "", path)


def _ascii(host: str) -> str:
    """A name with other letters as the DNS has it; "" if it can't be one."""
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return ""
