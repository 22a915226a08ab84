"""What helps where a folder can't be written to, or read, in words. Knows nothing of what lies there."""

import errno
import os

_AS_THE_OWNER = "run it as the folder's owner (docker run --user $(id -u):$(id -g))"


def remedy(error: OSError) -> str:
    """Ends a message: "; " and what to do, or "" where the reason is another than rights."""
    if error.errno == errno.EROFS:
        return "; it is mounted read-only: mount a volume there"
    if error.errno not in (errno.EACCES, errno.EPERM):
        return ""
    user = _user()
    return f"; this process is user {user}: make the folder its own (chown -R {user}), or {_AS_THE_OWNER}"


def remedy_of_reading() -> str:
    """The same where this process may not look into a folder; files that are only read need not be its own."""
    return f"; this process is user {_user()}: let it read all of the folder (chmod -R a+rX), or {_AS_THE_OWNER}"


def _user() -> str:
    return f"{os.geteuid()}:{os.getegid()}"
