"""The `date` header of all answers."""

import time
from email.utils import formatdate

_Headers = list[tuple[bytes, bytes]]


class DateHeader(_Headers):
    """Uvicorn adds an answer's headers to this list when the answer begins. The date is made then, once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._line = (b"date", b"")

    def __add__(self, headers: _Headers) -> _Headers:  # type: ignore[override]  # a list adds any list
        return [self.now(), *headers]

    def now(self) -> tuple[bytes, bytes]:
        """The header's name and value."""
        second = int(time.time())
        if second != self._second:
            self._second, self._line = second, (b"date", formatdate(second, usegmt=True).encode())
        return self._line
