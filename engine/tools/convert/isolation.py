"""What the process that reads pickles gives up before it opens one: the network, memory, processor time, large files.

Knows nothing of weights. To be called while the process has one thread, for the kernel asks that of a new namespace.
"""

import contextlib
import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path

# linux/sched.h and linux/prctl.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_PR_SET_NO_NEW_PRIVS = 38


@dataclass(frozen=True, slots=True)
class Limits:
    """Of this process, from now on; no child of it gets more."""

    max_file_bytes: int  # of each file that it writes
    max_memory_bytes: int  # of private writable memory, where mapped files count too
    max_cpu_seconds: int


def isolate(limits: Limits) -> bool:
    """Take the limits and leave the network; whether the latter was permitted."""
    _limit(resource.RLIMIT_CORE, 0)  # what is in memory is not to lie about
    _limit(resource.RLIMIT_FSIZE, limits.max_file_bytes)
    _limit(resource.RLIMIT_DATA, limits.max_memory_bytes)
    _limit(resource.RLIMIT_CPU, limits.max_cpu_seconds, reserve=1)  # so that the signal tells: SIGXCPU, then SIGKILL
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return _leave_network(libc)


def _limit(kind: int, value: int, *, reserve: int = 0) -> None:
    """The hard limit is larger by the reserve; none is raised."""
    _, given = resource.getrlimit(kind)
    hard = value + reserve if given == resource.RLIM_INFINITY else min(value + reserve, given)
    resource.setrlimit(kind, (min(value, hard), hard))


def _leave_network(libc: ctypes.CDLL) -> bool:
    """Into a network namespace with nothing in it, not even a loopback that is up (unshare(2), user_namespaces(7)).

    Root may simply do so. Others may inside of a user namespace, where the kernel or the container permits those;
    its maps keep this user what it was, so that files can be written.
    """
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True
