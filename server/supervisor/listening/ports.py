"""A listening TCP port, or one line that says why there is none."""

import errno
import socket
from typing import Any

from server.settings.flag import SettingsError

_BACKLOG = 2048
_HIGH_PORT = 8080  # any from 1024 on would do


def address_of(hostname: str, port: int) -> tuple[str, int]:
    """What `bind` binds, as numbers. Raises SettingsError."""
    _, (host, *_) = _resolved(hostname, port)
    return str(host), port


def bind(hostname: str, port: int, flag: str) -> socket.socket:
    """A bound and listening TCP socket. Raises SettingsError that names the flag."""
    family, address = _resolved(hostname, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # inherited by what is accepted: a client that vanished without a word is noticed some day
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(error, port, flag) from None
    listener.setblocking(False)
    return listener


def reserve(hostname: str, port: int, flag: str, *, may_be_shared: bool = False) -> socket.socket:
    """A bound TCP socket that does not listen. It keeps the port for processes of this user that listen there
    themselves, each on a socket of its own (SO_REUSEPORT). Raises SettingsError that names the flag.

    may_be_shared  whether processes of a server that is to be taken over may listen there already
    """
    family, address = _resolved(hostname, port)
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind(address)  # before the port may be shared, so that another server's is noticed
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not may_be_shared:
                raise
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(address)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        reserved.close()
        raise _refused(error, port, flag) from None
    return reserved


def host_and_port(bound: socket.socket) -> str:
    """The address of a socket as gRPC writes it."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if bound.family == socket.AF_INET6 else f"{host}:{port}"


def _refused(error: OSError, port: int, flag: str) -> SettingsError:
    return SettingsError(f"{flag} {port}: can't listen there: {error.strerror}{_remedy(error, flag)}")


def _resolved(hostname: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """Raises SettingsError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise SettingsError(f"--hostname is not an address of this machine: {error.strerror}") from None
    return family, address


def _remedy(error: OSError, flag: str) -> str:
    """Docker lets an ordinary user have every port of a container's own network; other hosts may not."""
    if error.errno != errno.EACCES:
        return ""
    return (
        f"; only root may use low ports here: use {flag} {_HIGH_PORT}, or lower net.ipv4.ip_unprivileged_port_start "
        f"(docker run --sysctl net.ipv4.ip_unprivileged_port_start=0)"
    )
