"""How long to wait before a dead process is restarted, and when to give up."""

import signal

from server.supervisor.child import ChildProcess

_DELAYS = (0.0, 0.5, 2.0, 5.0, 15.0)  # seconds before the first, second, … start in a row that never became ready
# What a fault in the program ends with, most likely each time that it comes to the same place. SIGKILL is not one: it
# comes from the watchdog, or from the kernel when memory runs out.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}
_SHORT_LIFE_SECONDS = 5.0  # a process that was ready for less may not be healthy …
_SHORT_LIFE_DELAY = 0.5  # … so its restarts are not all immediate


class Restarts:
    """Counts the failures of each process. Times are time.monotonic() seconds."""

    def __init__(self) -> None:
        self._failures: dict[ChildProcess, int] = {}  # starts in a row that never became ready
        self._short_lives: dict[ChildProcess, int] = {}  # in a row
        self._ready_at: dict[ChildProcess, float] = {}  # of the present life
        self._has_served: set[ChildProcess] = set()
        self._faults: dict[ChildProcess, tuple[int, str | None] | None] = {}  # signal and stage of the last death

    def succeeded(self, child: ChildProcess, now: float) -> None:
        """It became ready."""
        self._ready_at[child] = now
        self._failures[child] = 0
        self._has_served.add(child)

    def has_served(self, child: ChildProcess) -> bool:
        """Whether it was ever ready."""
        return child in self._has_served

    def has_given_up(self, child: ChildProcess) -> bool:
        """Whether so many starts in a row failed, or two by the same fault in the same stage where it was never ready,
        that the next one most likely fails too."""
        return self._failures.get(child, 0) >= len(_DELAYS)

    def failed(self, child: ChildProcess, now: float, returncode: int | None = None) -> float:
        """It died, or could not be started and has no returncode. Returns the seconds to wait before the next start."""
        ready_at = self._ready_at.pop(child, None)
        if ready_at is None:
            failures = self._failures.get(child, 0) + 1
            if self._is_same_fault(child, returncode) and not self.has_served(child):
                failures = max(failures, len(_DELAYS))
            self._failures[child] = failures
            return _DELAYS[min(failures, len(_DELAYS)) - 1]
        is_short = now - ready_at < _SHORT_LIFE_SECONDS
        self._short_lives[child] = self._short_lives.get(child, 0) + 1 if is_short else 0
        return _SHORT_LIFE_DELAY if self._short_lives[child] > 1 else 0.0

    def _is_same_fault(self, child: ChildProcess, returncode: int | None) -> bool:
        """Whether it died as it did the last time, by a fault of the program."""
        before = self._faults.get(child)
        fault = None if returncode is None or -returncode not in _FAULTS else (-returncode, child.stage)
        self._faults[child] = fault
        return fault is not None and fault == before
