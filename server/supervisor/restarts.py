"""How long to wait before a process that died is started again, and when there is no hope left."""

from server.supervisor.child import Member

_DELAYS = (0.0, 0.5, 2.0, 5.0, 15.0)  # seconds before the first, second, … start in a row that never became ready
_SHORT_LIFE_SECONDS = 5.0  # being ready for less is no proof of health …
_SHORT_LIFE_DELAY = 0.5  # … so the next start is not made at once for ever


class CrashLoop:
    """Keeps count for each process. Times are time.monotonic() seconds."""

    def __init__(self) -> None:
        self._failures: dict[Member, int] = {}  # starts in a row that never became ready
        self._short_lives: dict[Member, int] = {}  # in a row
        self._ready_at: dict[Member, float] = {}  # of the present life
        self._has_served: set[Member] = set()

    def succeeded(self, member: Member, now: float) -> None:
        """It became ready."""
        self._ready_at[member] = now
        self._failures[member] = 0
        self._has_served.add(member)

    def has_served(self, member: Member) -> bool:
        """Whether it was ever ready."""
        return member in self._has_served

    def is_beyond_help(self, member: Member) -> bool:
        """Whether so many starts in a row never became ready that the next one hardly will."""
        return self._failures.get(member, 0) >= len(_DELAYS)

    def failed(self, member: Member, now: float) -> float:
        """It died, or could not be started. Seconds to wait before the next start."""
        ready_at = self._ready_at.pop(member, None)
        if ready_at is None:
            failures = self._failures[member] = self._failures.get(member, 0) + 1
            return _DELAYS[min(failures, len(_DELAYS)) - 1]
        is_short = now - ready_at < _SHORT_LIFE_SECONDS
        self._short_lives[member] = self._short_lives.get(member, 0) + 1 if is_short else 0
        return _SHORT_LIFE_DELAY if self._short_lives[member] > 1 else 0.0
