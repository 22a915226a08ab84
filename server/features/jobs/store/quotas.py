"""Counts what a store holds, of all owners together and of each, by the store's own count.

Here stands what is counted of a request, its end and a document; who is refused when there is no room; and how much is
reserved for the results of requests that run.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from server.features.jobs.store.store import BLOCK_BYTES, INODE_BYTES, OVERHEAD_BYTES, StoreFull, StoreLimits
from server.features.jobs.types import Document, Finished, JobError, NewRequest, Status

EXPIRY = Finished(
    Status.EXPIRED, errors=(JobError("EXPIRED", "the request waited longer than its max_time_in_queue_seconds"),)
)
_FIRST_RESULT = 1 << 20  # bytes, or a small part of what an owner may hold: until one of its results is known
_PART = 16


@dataclass(slots=True)
class Totals:
    """The numbers that all owners hold, or one."""

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

    total: Totals = field(default_factory=Totals)
    by_owner: defaultdict[str, Totals] = field(default_factory=lambda: defaultdict(Totals))
    _usual: dict[str, int] = field(default_factory=dict)  # bytes of the largest results of late, by owner
    _changes: list[tuple[str, tuple[int, int, int, int]]] = field(default_factory=list)  # of this transaction

    def add(self, owner: str, *, held: int = 0, open_bytes: int = 0, num_open: int = 0, running: int = 0) -> None:
        """Count that something of this owner came, changed or went."""
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
        return self._usual.get(owner, min(_FIRST_RESULT, limits.quota_of(owner) // _PART))

    def learn(self, owner: str, size: int, limits: StoreLimits) -> None:
        """The size of a result, also of one that found no room.

        Never more than half of what the owner may hold, so that one request can always run beside nothing.
        """
        usual = max(size, self.usual_result(owner, limits) // 2)
        self._usual[owner] = min(usual, limits.quota_of(owner) // 2)

    def has_room_for_result(self, owner: str, limits: StoreLimits) -> bool:
        """Whether one more request may run: each that runs may need as much room as its owner's latest results did."""
        usual = self.usual_result(owner, limits)
        running = ((name, one.num_running) for name, one in self.by_owner.items() if one.num_running)
        reserved = sum(count * self.usual_result(name, limits) for name, count in running)
        its = self.by_owner.get(owner, Totals())
        if its.held_bytes + (its.num_running + 1) * usual > limits.quota_of(owner):
            return False
        return self.total.held_bytes + reserved + usual <= limits.quota_bytes

    def _apply(self, owner: str, change: tuple[int, int, int, int]) -> None:
        self.total.add(*change)
        its = self.by_owner[owner]
        its.add(*change)
        if its == Totals():
            del self.by_owner[owner]


def size_of_new(new: NewRequest) -> int:
    """Bytes that a request takes while it waits or runs."""
    texts = (new.owner, new.route, new.webhook_endpoint or "", new.idempotency_key or "")
    headers = sum(len(name) + len(value) for name, value in new.headers)
    return OVERHEAD_BYTES + len(new.body) + headers + sum(map(len, texts))


def size_of_end(outcome: Finished) -> int:
    """Bytes that a request takes after its end; its body is gone then."""
    errors = sum(len(error.code) + len(error.message) for error in outcome.errors)
    if outcome.result is None:
        return OVERHEAD_BYTES + errors
    headers = sum(len(name) + len(value) for name, value in outcome.result.headers)
    return OVERHEAD_BYTES + errors + headers + len(outcome.result.body)


def too_large_to_keep(outcome: Finished) -> Finished:
    """The end of a request whose result has more bytes than its owner may hold."""
    message = f"the answer has {size_of_end(outcome)} bytes, which is more than this key may hold of --jobs-quota"
    return Finished(Status.FAILED, errors=(JobError("MODEL_INVALID_INPUT", message),))


def size_of_document(document: Document) -> int:
    """Bytes that it takes with its file."""
    return size_of_content(len(document.content), document.held_bytes)


def size_of_content(content_bytes: int, held_bytes: int) -> int:
    """The size of what is known of a request without its content."""
    blocks = -(-held_bytes // BLOCK_BYTES) * BLOCK_BYTES + INODE_BYTES if held_bytes else 0
    return OVERHEAD_BYTES + content_bytes + blocks


def refuse_what_finds_no_room(size: int, limits: StoreLimits, owner: str, total: Totals, its: Totals) -> None:
    """StoreFull if a new request of this size may not be added."""
    for held, share, whose in ((total, 1.0, ""), (its, limits.share_of(owner), " of this key")):
        if held.num_open >= limits.max_queued * share:
            raise StoreFull(f"{held.num_open} requests{whose} wait, as many as may")
        if held.open_bytes + size > int(limits.quota_bytes * share) // 2:
            raise StoreFull(f"requests{whose} that wait take half of the store's quota, as much as they may")
    refuse_growth(size, limits, owner, total.held_bytes, its.held_bytes)


def refuse_growth(size: int, limits: StoreLimits, owner: str, held_bytes: int, its_bytes: int) -> None:
    """StoreFull if the store, or this owner in it, may not grow by so many bytes."""
    if held_bytes + size > limits.quota_bytes:
        raise StoreFull("the store's quota is used up")
    if its_bytes + size > limits.quota_of(owner):
        raise StoreFull("this key's share of the store's quota is used up: remove files, or wait for results to expire")
