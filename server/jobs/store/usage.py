"""What a store holds, of all owners together and of each, by the store's own count."""

from collections import defaultdict
from dataclasses import dataclass, field

from server.jobs.store.store import StoreLimits

_FIRST_RESULT = 1 << 20  # bytes, or a small part of what an owner may hold: until one of its results is known
_PART = 16


@dataclass(slots=True)
class Held:
    """Of all, or of one owner."""

    held_bytes: int = 0
    open_bytes: int = 0  # of requests that wait or run; part of the former
    num_open: int = 0
    num_running: int = 0  # part of the former; for each of them the room of a result is reserved

    def add(self, held_bytes: int, open_bytes: int, num_open: int, num_running: int) -> None:
        """Change all of them."""
        self.held_bytes += held_bytes
        self.open_bytes += open_bytes
        self.num_open += num_open
        self.num_running += num_running


@dataclass(slots=True)
class Usage:
    """Changed only inside a transaction, and set back with it."""

    total: Held = field(default_factory=Held)
    by_owner: defaultdict[str, Held] = field(default_factory=lambda: defaultdict(Held))
    _usual: dict[str, int] = field(default_factory=dict)  # bytes of the largest results of late, by owner
    _changes: list[tuple[str, tuple[int, int, int, int]]] = field(default_factory=list)  # of this transaction

    def add(self, owner: str, *, held: int = 0, open_bytes: int = 0, num_open: int = 0, running: int = 0) -> None:
        """Something of this owner came, changed or went."""
        change = (held, open_bytes, num_open, running)
        self._changes.append((owner, change))
        self._apply(owner, change)

    def begin(self) -> None:
        """A transaction begins: the one before it is kept."""
        self._changes.clear()

    def undo(self) -> None:
        """The transaction is not kept."""
        for owner, change in self._changes:
            held, open_bytes, num_open, running = change
            self._apply(owner, (-held, -open_bytes, -num_open, -running))
        self._changes.clear()

    def usual_result(self, owner: str, limits: StoreLimits) -> int:
        """Bytes that the next result of this owner may have, by its latest ones."""
        return self._usual.get(owner, first_result(limits.quota_of(owner)))

    def learn(self, owner: str, size: int, limits: StoreLimits) -> None:
        """The size of a result, also of one that found no room."""
        self._usual[owner] = usual_after(self.usual_result(owner, limits), size, limits.quota_of(owner))

    def has_room_for_result(self, owner: str, limits: StoreLimits) -> bool:
        """Whether one more request may run: each that runs may need as much room as its owner's latest results did."""
        usual = self.usual_result(owner, limits)
        running = ((name, one.num_running) for name, one in self.by_owner.items() if one.num_running)
        reserved = sum(count * self.usual_result(name, limits) for name, count in running)
        its = self.by_owner.get(owner, Held())
        if its.held_bytes + (its.num_running + 1) * usual > limits.quota_of(owner):
            return False
        return self.total.held_bytes + reserved + usual <= limits.quota_bytes

    def _apply(self, owner: str, change: tuple[int, int, int, int]) -> None:
        self.total.add(*change)
        its = self.by_owner[owner]
        its.add(*change)
        if its == Held():
            del self.by_owner[owner]


def first_result(quota: int) -> int:
    """What is reserved before an owner's results are known."""
    return min(_FIRST_RESULT, quota // _PART)


def usual_after(usual: int, size: int, quota: int) -> int:
    """Never more than half of what the owner may hold: one request can always run beside nothing."""
    return min(max(size, usual // 2), quota // 2)
