"""Listening sockets: on a TCP port, at the path of a Unix socket, or passed in by whoever started the server.

An end of theirs loses no connection that a client takes for established. The kernel completes a handshake by itself and
queues the connection until some process accepts it. What is in that queue when the last descriptor is closed gets a
reset. So a TCP port first drops the packets that would begin a handshake (SYN) by a filter, and a Unix socket leaves
its path; handshakes under way still finish, and the queue is read until it is empty. A client whose SYN was dropped
repeats it a second later, and is refused then, or reaches another server behind the balancer.
"""

import ctypes
import errno
import os
import select
import socket
import stat
import struct
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from server.settings.flag import SettingsError
from wire.descriptors import peer_of

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; Python has no name for it
_TCP_INFO_BYTES = 192
_TCP_INFO_UNACKED = struct.Struct("24xI")  # linux/tcp.h: of a listening socket it is the length of the accept queue
# Classic BPF (linux/filter.h): code, jump if true, jump if false, constant. The filter of a listening TCP socket sees a
# packet from its TCP header on, with IPv4 and with IPv6.
_INSTRUCTION = struct.Struct("HBBI")
_SYN, _ACK = 0x02, 0x10
_DROP_SYN = b"".join(
    _INSTRUCTION.pack(*instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load byte 13, the flags
        (0x54, 0, 0, _SYN | _ACK),  # keep these two
        (0x15, 0, 1, _SYN),  # SYN alone?
        (0x06, 0, 0, 0),  # drop
        (0x06, 0, 0, 0xFFFFFFFF),  # keep the whole packet
    )
)
_BACKLOG = 2048
_HIGH_PORT = 8080  # any from 1024 on would do
_CONNECT_SECONDS = 1.0  # to learn which process listens at the path already
MONITOR_NAME = "monitor"  # FileDescriptorName= of the unit of the second port; all others are the main port's


class Listeners:
    """The sockets of one port; they share an address.

    The filter belongs to a socket and not to a process. A socket that somebody else goes on serving never gets one.

    kept_elsewhere  whether another process has them too and goes on after this server: systemd, or a server that takes
                    over. Then connections wait in their queues for whoever accepts next.
    """

    def __init__(self, sockets: Sequence[socket.socket], *, kept_elsewhere: bool = False) -> None:
        self.sockets = tuple(sockets)
        self.kept_elsewhere = kept_elsewhere

    @property
    def address(self) -> tuple[str, int]:
        """The host and port."""
        host, port = self.sockets[0].getsockname()[:2]
        return host, port

    def refuse_new(self) -> None:
        """Let no handshake begin from now on, in any process that serves these sockets."""
        assert not self.kept_elsewhere, "another process goes on serving them"
        program = ctypes.create_string_buffer(_DROP_SYN)
        length = len(_DROP_SYN) // _INSTRUCTION.size
        for listener in self.sockets:
            sock_fprog = struct.pack("HL", length, ctypes.addressof(program))
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, sock_fprog)

    def num_waiting(self) -> int:
        """The number of connections that no process has accepted yet."""
        return sum(map(_queue_length, self.sockets))

    def close(self) -> None:
        """Close our copies; the port closes with the last process that has one."""
        for listener in self.sockets:
            listener.close()


class UnixPort:
    """A listening Unix socket at a path that clients know; one, for all frontends. Its end is that of a `Listeners`.

    It is bound under a name of its own and then renamed. So the path always leads to a server that accepts: to this
    one, or until then to the one whose place it takes.
    """

    kept_elsewhere = False  # a successor has a socket of its own

    def __init__(self, path: str, *, predecessor: int | None = None) -> None:
        """Listens, but not at the path yet. Raises SettingsError.

        predecessor  process id of the server that may listen there, as this one takes over from it
        """
        self._path = Path(path).absolute()
        self._unnamed = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        self._predecessor = predecessor
        self._replaced = _identity(self._path)
        _check_free(self._path, predecessor)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._unnamed.unlink(missing_ok=True)
            self.socket.bind(str(self._unnamed))  # with the mode that the umask leaves
            self.socket.listen(_BACKLOG)
            self._identity = _identity(self._unnamed)
        except OSError as error:
            self.socket.close()
            raise SettingsError(f"--uds: can't listen there: {error.strerror or error}") from None

    def publish(self) -> None:
        """Let clients that connect to the path reach this server from now on. Raises OSError.

        Raises SettingsError if another server has come to the path since the start.
        """
        if _identity(self._path) != self._replaced:
            _check_free(self._path, self._predecessor)
        self._unnamed.rename(self._path)

    def refuse_new(self) -> None:
        """Let nobody find this socket from now on. The path stays if it is another server's by now."""
        for path in (self._path, self._unnamed):
            if _identity(path) == self._identity:
                path.unlink(missing_ok=True)

    def num_waiting(self) -> int:
        """The number of waiting connections, 1 if any wait that no process has accepted yet: the kernel does not say
        how many."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return len(poll.poll(0))

    def close(self) -> None:
        """Close our copy; the socket closes with the last process that has one."""
        self.refuse_new()
        self.socket.close()


def address_of(hostname: str, port: int) -> tuple[str, int]:
    """The address that `bind` binds, as numbers. Raises SettingsError."""
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
    """The address of a socket in one text."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if bound.family == socket.AF_INET6 else f"{host}:{port}"


def inherited(environment: MutableMapping[str, str], *, first: int = 3) -> dict[str, Listeners]:
    """The sockets that systemd's socket units pass in (`man sd_listen_fds`), by port: "" is the main one.

    Empty where none were passed in, or they are another process's.

    Takes the variables out of the environment, so that no later child has them. Raises SettingsError for what is no
    listening TCP socket.
    """
    pid, number, names = (environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"))
    if pid != str(os.getpid()) or not number.isdecimal():
        return {}
    named = names.split(":") if names else []
    found: dict[str, list[socket.socket]] = {}
    for index in range(int(number)):
        port = MONITOR_NAME if named[index : index + 1] == [MONITOR_NAME] else ""
        found.setdefault(port, []).append(_listener(first + index))
    if found and "" not in found:
        raise SettingsError(f"LISTEN_FDS: every socket is named {MONITOR_NAME}, so none is left for the main port")
    return {port: Listeners(sockets, kept_elsewhere=True) for port, sockets in found.items()}


def _queue_length(listener: socket.socket) -> int:
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int(_TCP_INFO_UNACKED.unpack_from(info)[0])


def _refused(error: OSError, port: int, flag: str) -> SettingsError:
    remedy = ""
    if error.errno == errno.EACCES:  # Docker lets an ordinary user have every port of a container's own network
        remedy = (
            f"; only root may use low ports here: use {flag} {_HIGH_PORT}, or lower "
            "net.ipv4.ip_unprivileged_port_start (docker run --sysctl net.ipv4.ip_unprivileged_port_start=0)"
        )
    return SettingsError(f"{flag} {port}: can't listen there: {error.strerror}{remedy}")


def _resolved(hostname: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    """The first address of the host. Raises SettingsError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise SettingsError(f"--hostname is not an address of this machine: {error.strerror}") from None
    return family, address


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of the file at the path; None if none is there."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_free(path: Path, predecessor: int | None) -> None:
    """Raises SettingsError for a file that is no socket, and for a socket that another process serves."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # binding says what is wrong
    if not stat.S_ISSOCK(mode):
        raise SettingsError("--uds: something else than a socket is there already")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_SECONDS)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return  # whoever made it is gone
        except OSError as error:
            raise SettingsError(f"--uds: a socket is there already: {error.strerror or error}") from None
        pid = peer_of(client).pid
    if predecessor is None:
        raise SettingsError("--uds: another server listens there; stop it first, or take over from it with --takeover")
    if pid != predecessor:
        raise SettingsError(f"--uds: process {pid} listens there, and --takeover takes over from process {predecessor}")


def _listener(fd: int) -> socket.socket:
    try:
        passed = socket.socket(fileno=fd)
    except OSError as error:
        raise SettingsError(f"LISTEN_FDS: descriptor {fd} is not a socket: {error.strerror}") from None
    is_tcp = passed.family in (socket.AF_INET, socket.AF_INET6) and passed.type == socket.SOCK_STREAM
    if not is_tcp or not passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        passed.close()
        raise SettingsError(f"LISTEN_FDS: descriptor {fd} is not a listening TCP socket (Accept=no, ListenStream=PORT)")
    os.set_inheritable(fd, False)
    passed.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    passed.setblocking(False)
    return passed
