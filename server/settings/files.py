"""The files that flags name: read once as text, or watched because they may be replaced while the server runs.

Keys and certificates are replaced so. Knows nothing of what is in a file.
"""

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from server.settings.flag import SettingsError
from wire.placeholder import placeholder

# When it changed last, in ns, also in name or rights; its inode; its bytes.
FileVersion = tuple[int, int, int]
LOOK_SECONDS = 1.0


def read_text(path: str, *, name: str, max_bytes: int) -> str:
    """The text, without a byte order mark. Raises SettingsError, which calls the file `name` and repeats nothing."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise SettingsError(f"{name} can't be read: {placeholder(Path(path)) or error.strerror}") from None
    if len(content) > max_bytes:  # a part of it could end within a key
        raise SettingsError(f"{name} has more than {max_bytes} bytes")
    if found := placeholder(Path(path)):
        raise SettingsError(f"{name} can't be read: {found}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8 text; save it as UTF-8") from None


def version_of(path: str) -> FileVersion | None:
    """Returns None where there is no regular file."""
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
