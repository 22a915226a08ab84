"""When refused requests should come back, so that they find room and don't come back together.

They are given slots one after another. A slot is as long as the work it stands for takes at a part of the engines'
speed; the rest is left for new requests. A burst that is refused for some seconds comes back over some minutes.
"""

from collections.abc import Hashable

_PART = 0.3  # of the engines' speed: after a burst a server that is half busy has room for it
_LONGEST = 300.0  # seconds; later slots begin anew, so a long overload is spread over this time


class ReturnTimes:
    """The slots of each line of refused requests. A slot that nobody comes back for is lost."""

    def __init__(self) -> None:
        self._next_slots: dict[Hashable, float] = {}  # by line: time.monotonic() seconds

    def take(self, line: Hashable, seconds: float, now: float) -> float:
        """Seconds from now to a slot for work that takes so many seconds."""
        slot = max(now, self._next_slots.get(line, now))
        if slot - now > _LONGEST:
            slot = now
        self._next_slots[line] = slot + seconds / _PART
        return slot - now
