"""What every process of the house does first: take its name, ignore the terminal, die with the supervisor."""

import contextlib
import ctypes
import logging
import os
import signal
import sys

LOG_FORMAT = "%(asctime)s %(levelname)s %(role)s: %(message)s"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def settle(parent_pid: int) -> None:
    """Tie this process to the supervisor. Signals from a terminal or a service manager go to the whole
    group; only the supervisor acts on them, and tells its children through their control channel."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        print("embedline: the supervisor is gone, or started this process through another one", file=sys.stderr)
        os._exit(1)


def begin(title: str, log_level: str) -> None:
    """Take the name that START gave, and log under it."""
    set_title(title)
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT.replace("%(role)s", title))


def set_title(title: str) -> None:
    """What `ps` shows for this process."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title[:15].encode(), 0, 0, 0)
    # A role may run under an interpreter that has numpy alone.
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(f"embedline: {title}")
