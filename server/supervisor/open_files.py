"""How many descriptors the processes may open, and that enough are left to restart one that died."""

import resource

from server.settings.flag import SettingsError

MONITOR_CONNECTIONS = 32  # at most, of the supervisor's own port
_OWN = (
    48  # of any process, besides what is counted here: its loop, its log, its libraries, a page of /proc that it reads
)
_OF_PROCESS = 3  # in the supervisor: the socket that it serves, its control channel, its pidfd
_STARTING = 8  # to start a process
_LEAST_CONNECTIONS = 64  # of a frontend: fewer would not be a server


def raise_limit() -> None:
    """Take all that this user may have; processes started from now on have it too."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check(*, num_processes: int) -> None:
    """Raises SettingsError where so many processes can't be supervised, or one of them not be restarted."""
    of_supervisor = _OWN + 2 * MONITOR_CONNECTIONS + _STARTING + _OF_PROCESS * num_processes
    of_frontend = _OWN + 2 * _LEAST_CONNECTIONS + num_processes
    needed = max(of_supervisor, of_frontend)
    if _limit() < needed:
        raise SettingsError(
            f"a process may open {_limit()} files, and this server needs {needed}: raise the limit "
            f"(ulimit -n {needed}, LimitNOFILE={needed} of systemd, docker run --ulimit nofile={needed}), "
            "or start fewer processes"
        )


def max_connections(*, num_peers: int) -> int:
    """Of a frontend that also keeps a connection to each of so many other processes.

    A fifth is left for connections that are accepted before older ones are closed in their favour.
    """
    return max(_LEAST_CONNECTIONS, 4 * (_limit() - _OWN - num_peers) // 5)


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
