"""How long to wait before a process is started again, and when to stop trying."""

from server.member import Member

_DELAYS = (0.0, 0.5, 2.0, 5.0)  # seconds before the first, second, … start in a row that did not become ready


class CrashLoop:
    """Counts, per process, the starts in a row that did not become ready. A process that served is started at once."""

    def __init__(self) -> None:
        self._failures: dict[Member, int] = {}
        self._served: set[Member] = set()

    def succeeded(self, member: Member) -> None:
        """It became ready."""
        self._failures[member] = 0
        self._served.add(member)

    def has_served(self, member: Member) -> bool:
        """Whether it was ever ready."""
        return member in self._served

    def failed(self, member: Member) -> float | None:
        """It died. Seconds to wait, None when it has failed too often."""
        failures = self._failures.get(member, 0)
        self._failures[member] = failures + 1
        return _DELAYS[failures] if failures < len(_DELAYS) else None
