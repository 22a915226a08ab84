"""The certificate that the HTTP port shows, taken anew when its files change. Knows nothing of requests."""

import logging
import ssl

from server.settings.flag import SettingsError
from server.settings.watched_files import WatchedFiles, version_of

_PROTOCOLS = ("http/1.1",)

logger = logging.getLogger("embedline.server")


class Certificate:
    """Handshakes get the newest certificate whose key fits. Files that can't be used leave the one before in place."""

    def __init__(self, certfile: str, keyfile: str | None) -> None:
        """Raises SettingsError."""
        self._files = (certfile, keyfile)
        self._watched = WatchedFiles({path: version_of(path) for path in self._files if path is not None})
        self.context = self._newest = load(certfile, keyfile)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called by each handshake, also of a client that names no server."""
        if self._watched.have_changed():
            self._renew()
        if self._newest is not context:
            connection.context = self._newest

    def _renew(self) -> None:
        try:
            self._newest = load(*self._files)
        except SettingsError as error:
            logger.error("%s; the certificate that was read before stays", error)
        else:
            logger.info("new connections get the certificate that --ssl-certfile has now")


def load(certfile: str, keyfile: str | None) -> ssl.SSLContext:
    """For a server that speaks TLS 1.2 or newer. Raises SettingsError, which names the flag."""
    _check_readable(certfile, "--ssl-certfile")
    if keyfile is not None:
        _check_readable(keyfile, "--ssl-keyfile")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_PROTOCOLS)
    try:
        context.load_cert_chain(certfile, keyfile, password=_no_password)
    except OSError:  # ssl.SSLError is one
        flags = "--ssl-certfile" if keyfile is None else "--ssl-certfile and --ssl-keyfile"
        raise SettingsError(f"{flags}: not a certificate in PEM with the private key that fits it") from None
    return context


def _check_readable(path: str, flag: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise SettingsError(f"{flag} can't be read: {error.strerror}") from None


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal, and wait."""
    raise SettingsError("--ssl-keyfile is encrypted: a server that starts by itself needs a key without a password")
