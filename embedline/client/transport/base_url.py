"""Base URLs, as people write them, to where connections go."""

from dataclasses import dataclass
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where connections go, and what comes before each path."""

    host: str
    port: int
    is_tls: bool
    prefix: str  # of paths; "" or begins with a slash and ends without one

    @property
    def host_header(self) -> str:
        """The value of the header `host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL as messages name it."""
        return f"{'https' if self.is_tls else 'http'}://{self.host_header}{self.prefix}"


def read_base_url(url: str) -> Origin:
    """A base URL with or without /v1 at its end. Raises ValueError; its message has nothing of a password."""
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
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Origin(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", prefix)
