"""`embedline health`: asks a server whether it is ready. The standard library alone, since a container runs it
every few seconds for as long as it lives. The certificate of a server on this machine is not checked, since it names
the machine as others know it."""

import http.client
import os
import sys
from urllib.parse import urlsplit

_TIMEOUT = 2.0  # seconds; for the connection, and again for the answer


def local_urls() -> tuple[str, str]:
    """The URLs where a server started on this machine answers: on the environment's port, or on 8080; by TLS where the
    environment has its certificate. Two, because a name such as localhost need not stand for both addresses."""
    scheme = "https" if os.environ.get("EMBEDLINE_SSL_CERTFILE") else "http"
    # what a user sets outranks what Vertex AI does, and that outranks an image's
    names = ("EMBEDLINE_PORT", "AIP_HTTP_PORT", "PORT")
    given = (os.environ.get(name) for name in names)
    here = next((value for value in given if value and "://" not in value), 8080)  # :// is in Kubernetes's
    return f"{scheme}://127.0.0.1:{here}", f"{scheme}://[::1]:{here}"


def health(url: str, *others: str) -> int:
    """Exit code 0 if GET /readyz at this address (http://host:port or https://) is answered with 200, else 1. Prints
    one line. The others are asked in turn where nothing listens."""
    try:
        status = _status(_connection(url))
    except (OSError, ValueError, http.client.HTTPException) as error:
        if others and isinstance(error, ConnectionRefusedError):
            return health(*others)
        print(f"embedline: no answer: {_reason(error)}", file=sys.stderr)
        return 1
    if status == http.HTTPStatus.OK:
        print("ready")
        return 0
    print(f"embedline: not ready: GET /readyz was answered with {status}", file=sys.stderr)
    return 1


def _connection(url: str) -> http.client.HTTPConnection:
    """A connection that is not open yet. Raises ValueError for what is no address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address is http://host:port or https://host:port")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port or http.client.HTTP_PORT, timeout=_TIMEOUT)
    import ssl  # costs milliseconds

    context = ssl.create_default_context()
    if parts.hostname in ("127.0.0.1", "localhost", "::1"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = parts.port or http.client.HTTPS_PORT
    return http.client.HTTPSConnection(parts.hostname, port, timeout=_TIMEOUT, context=context)


def _status(connection: http.client.HTTPConnection) -> int:
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [""])[0] or type(error).__name__
