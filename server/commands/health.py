"""`embedline health`: asks a server whether it is ready. The standard library alone, since a container runs it
every few seconds for as long as it lives."""

import http.client
import os
import sys
from urllib.parse import urlsplit

_TIMEOUT = 2.0  # seconds; for the connection, and again for the answer


def local_url(port: int | None = None) -> str:
    """Where a server started on this machine answers: on this port, or on the environment's PORT, or on 8080."""
    return f"http://127.0.0.1:{port or os.environ.get('PORT') or 8080}"


def health(url: str) -> int:
    """Exit code 0 if GET /readyz at this address (http://host:port) is answered with 200, else 1. Prints one line."""
    try:
        host, port = _address(url)
        status = _status(host, port)
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"embedline: no answer: {_reason(error)}", file=sys.stderr)
        return 1
    if status == http.HTTPStatus.OK:
        print("ready")
        return 0
    print(f"embedline: not ready: GET /readyz was answered with {status}", file=sys.stderr)
    return 1


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("an address is http://host:port")
    return parts.hostname, parts.port or http.client.HTTP_PORT


def _status(host: str, port: int) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [""])[0] or type(error).__name__
