"""The `date` header of all answers."""

import time
from email.utils import formatdate


class DateHeader:
    """Is made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._header = (b"date", b"")

    def now(self) -> tuple[bytes, bytes]:
        """The header's name and value."""
        second = int(time.time())
        if second != self._second:
            self._second, self._header = second, (b"date", formatdate(second, usegmt=True).encode())
        return self._header
