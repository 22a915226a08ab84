"""The certificate that the HTTP port shows, taken anew when its files change. Knows nothing of requests."""

import logging
import os
import ssl
import stat
from collections.abc import Callable, Sequence
from typing import TypeVar

from server.settings.files import WatchedFiles, version_of
from server.settings.flag import SettingsError

_Certificate = TypeVar("_Certificate")
_PROTOCOLS = ("http/1.1",)
_MAX_BYTES = 1_000_000  # of a file; a chain has some thousand

logger = logging.getLogger("embedline.server")


class Certificate:
    """Handshakes get the newest certificate whose key fits. Files that can't be used leave the one before in place."""

    def __init__(self, certfile: str, keyfile: str | None, *, copies: Sequence[int] = ()) -> None:
        """`copies`, as `copied` gives them, are shown until the files can be used. Raises SettingsError."""
        self._files = (certfile, keyfile)
        self._watched = WatchedFiles({path: version_of(path) for path in self._files if path is not None})
        self.context = self._newest = first_of(load, self._files, copies)
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


def first_of(
    read: Callable[[str, str | None], _Certificate],
    files: tuple[str, str | None],
    copies: Sequence[int],
    *,
    of: str = "",
) -> _Certificate:
    """Reads the copies where the files can't be used; `of` begins the line of the log. Raises SettingsError."""
    try:
        return read(*files)
    except SettingsError as error:
        if not copies:
            raise
        logger.error("%s%s; the certificate that the server was started with is shown", of, error)
        certfile, *keyfile = (f"/proc/self/fd/{fd}" for fd in copies)
        return read(certfile, keyfile[0] if keyfile else None)


def load(certfile: str, keyfile: str | None) -> ssl.SSLContext:
    """The context for a server that speaks TLS 1.2 or newer. Raises SettingsError, which names the flag."""
    contents(certfile, keyfile)
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


def copied(certfile: str, keyfile: str | None) -> list[int]:
    """Descriptors of copies in memory, for processes that start while the files are being replaced.

    Raises SettingsError for files that can't be used.
    """
    load(certfile, keyfile)
    return [_in_memory(content) for content in contents(certfile, keyfile)]


def contents(certfile: str, keyfile: str | None) -> list[bytes]:
    """The contents of the certificate, and of the key where that is in a file of its own. Raises SettingsError for what
    can't be read."""
    files = [(certfile, "--ssl-certfile"), (keyfile, "--ssl-keyfile")]
    return [_content(path, flag) for path, flag in files if path is not None]


def _content(path: str, flag: str) -> bytes:
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):  # opening it could take for ever
            raise SettingsError(f"{flag} is a pipe; it must be a file")
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise SettingsError(f"{flag} can't be read: {error.strerror}") from None


def _in_memory(content: bytes) -> int:
    fd = os.memfd_create("embedline-certificate", os.MFD_CLOEXEC)
    os.write(fd, content)
    return fd


def _no_password() -> str:
    """Raises SettingsError: without a callback OpenSSL would ask for the password at the terminal, and wait."""
    raise SettingsError("--ssl-keyfile is encrypted: a server that starts by itself needs a key without a password")
