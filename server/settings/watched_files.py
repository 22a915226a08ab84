"""Files that may be replaced while the server runs, as keys and certificates are. Knows nothing of what is in them."""

import os
import stat
import time
from collections.abc import Callable, Mapping

# When it changed last, in ns, also in name or rights; its inode; its bytes.
FileVersion = tuple[int, int, int]

LOOK_SECONDS = 1.0


def version_of(path: str) -> FileVersion | None:
    """None where there is no regular file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ctime_ns, found.st_ino, found.st_size) if stat.S_ISREG(found.st_mode) else None


class WatchedFiles:
    """Tells once of each change. Looks only when it is asked, and at most once a second."""

    def __init__(
        self, versions: Mapping[str, FileVersion | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`versions` by path, each taken before the file was read, so that no change can be missed."""
        self._versions = dict(versions)
        self._clock = clock
        self._next_look = clock()

    def have_changed(self) -> bool:
        """Whether a file has another version than when this was last true."""
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        versions = {path: version_of(path) for path in self._versions}
        if versions == self._versions:
            return False
        self._versions = versions
        return True
