"""The certificate of the gRPC port: the same files as the HTTP port's, read again when they change."""

import logging
from collections.abc import Sequence

import grpc

from server.http.connection.tls import contents, load
from server.settings.flag import SettingsError
from server.settings.watched_files import WatchedFiles, version_of

logger = logging.getLogger("embedline.server")


def server_credentials(certfile: str, keyfile: str | None, *, copies: Sequence[int] = ()) -> grpc.ServerCredentials:
    """`copies`, as server.http.connection.tls has them, are shown until the files can be used. Raises SettingsError."""
    watched = WatchedFiles({path: version_of(path) for path in (certfile, keyfile) if path is not None})

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called by each handshake, in a thread of the library; None keeps the certificate before."""
        if not watched.have_changed():
            return None
        try:
            return _read(certfile, keyfile)
        except SettingsError as error:
            logger.error("gRPC: %s; the certificate that was read before stays", error)
            return None

    return grpc.dynamic_ssl_server_credentials(_first(certfile, keyfile, copies), renewed)


def _first(certfile: str, keyfile: str | None, copies: Sequence[int]) -> grpc.ServerCertificateConfiguration:
    try:
        return _read(certfile, keyfile)
    except SettingsError as error:
        if not copies:
            raise
        logger.error("gRPC: %s; the certificate that the server was started with is shown", error)
        certfile, *keyfiles = (f"/proc/self/fd/{fd}" for fd in copies)
        return _read(certfile, keyfiles[0] if keyfiles else None)


def _read(certfile: str, keyfile: str | None) -> grpc.ServerCertificateConfiguration:
    """Raises SettingsError for files that can't be used, which the library would only notice in a handshake."""
    load(certfile, keyfile)
    chain, *key = contents(certfile, keyfile)
    return grpc.ssl_server_certificate_configuration([(key[0] if key else chain, chain)])
