"""How much room there is in a store: what is counted, and who is refused when it is short."""

from server.jobs.store.errors import StoreFull
from server.jobs.store.store import OVERHEAD_BYTES, StoreLimits
from server.jobs.types import Document, Finished, NewRequest

EXPIRED_MESSAGE = "the request waited longer than its max_time_in_queue_seconds"


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


def size_of_document(document: Document) -> int:
    return OVERHEAD_BYTES + len(document.content) + document.held_bytes


def refuse_what_finds_no_room(
    size: int, limits: StoreLimits, *, held_bytes: int, open_bytes: int, num_open: int
) -> None:
    """StoreFull if a new request of this size may not be added."""
    if num_open >= limits.max_queued:
        raise StoreFull(f"{num_open} requests wait, as many as may")
    if open_bytes + size > limits.quota_bytes // 2:
        raise StoreFull("requests that wait take half of the store's quota, as much as they may")
    refuse_growth(size, limits, held_bytes=held_bytes)


def refuse_growth(size: int, limits: StoreLimits, *, held_bytes: int) -> None:
    """StoreFull if the store may not grow by so many bytes."""
    if held_bytes + size > limits.quota_bytes:
        raise StoreFull("the store's quota is used up")
