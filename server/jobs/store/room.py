"""How much room there is in a store: what is counted, and who is refused when it is short."""

from server.jobs.store.errors import StoreFull
from server.jobs.store.store import BLOCK_BYTES, INODE_BYTES, OVERHEAD_BYTES, StoreLimits
from server.jobs.store.usage import Held
from server.jobs.types import Document, Finished, JobError, NewRequest, Status

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


def too_large_to_keep(outcome: Finished) -> Finished:
    """How a request ends whose result has more bytes than its owner may hold."""
    message = f"the answer has {size_of_end(outcome)} bytes, which is more than this key may hold of --jobs-quota"
    return Finished(Status.FAILED, errors=(JobError("MODEL_INVALID_INPUT", message),))


def size_of_document(document: Document) -> int:
    """Bytes that it takes with its file."""
    return size_of_content(len(document.content), document.held_bytes)


def size_of_content(content_bytes: int, held_bytes: int) -> int:
    """The same, of what is known without its content."""
    blocks = -(-held_bytes // BLOCK_BYTES) * BLOCK_BYTES + INODE_BYTES if held_bytes else 0
    return OVERHEAD_BYTES + content_bytes + blocks


def refuse_what_finds_no_room(size: int, limits: StoreLimits, owner: str, total: Held, its: Held) -> None:
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
