"""Listening sockets that whoever started the server passes in, as systemd's socket units do (`man sd_listen_fds`)."""

import os
import socket
from collections.abc import MutableMapping

from server.settings.flag import SettingsError
from server.supervisor.listening.listeners import Listeners

MONITOR_NAME = "monitor"  # FileDescriptorName= of the unit of the second port; all others are the main port's
_FIRST_FD = 3
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def inherited(environment: MutableMapping[str, str], *, first: int = _FIRST_FD) -> dict[str, Listeners]:
    """The sockets by port: "" is the main one. Empty where none were passed in, or they are another process's.

    Takes the variables out of the environment, so that no child reads them. Raises SettingsError for what is no
    listening TCP socket.
    """
    pid, number, names = (environment.pop(name, "") for name in _VARIABLES)
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
