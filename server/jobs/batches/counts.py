"""How many batches are open, and how far they have come: what `GET /jobs` and the metrics tell of them."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from server.jobs import files
from server.jobs.batches.batches import MAX_OPEN
from server.jobs.batches.state import KIND, OPEN, OPEN_STATUSES, state_of
from server.jobs.messages import Call, Reply
from server.jobs.requests import asked
from server.jobs.service import Handler
from server.jobs.store.store import DocumentStore
from server.jobs.types import Document


@dataclass(frozen=True, slots=True)
class Lines:
    """Of the batches that run. `left` are those without an answer on the disk."""

    completed: int
    failed: int
    left: int


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Batches that have not ended. Each of their statuses is in `open`; ages are seconds, 0 where there is none."""

    open: dict[str, int]
    oldest_age: float
    lines: Lines


def counts_of(batches: Iterable[Document], now: float) -> BatchCounts:
    """Of documents of open batches."""
    states = [state_of(document) for document in batches]
    completed, failed = sum(state.completed for state in states), sum(state.failed for state in states)
    return BatchCounts(
        {status: sum(state.status == status for state in states) for status in OPEN_STATUSES},
        max((max(0.0, now - state.created_at) for state in states), default=0.0),
        Lines(completed, failed, sum(state.total for state in states) - completed - failed),
    )


async def open_batches(documents: DocumentStore) -> list[Document]:
    """Of all owners, the oldest first."""
    return await documents.in_state(KIND, OPEN, limit=MAX_OPEN)


class DocumentCounts:
    """The call about the numbers of batches and files."""

    def __init__(self, documents: DocumentStore, clock: Callable[[], float]) -> None:
        self._documents = documents
        self._clock = clock

    def handlers(self) -> dict[str, Handler]:
        """What frontends may ask for."""
        return {"document_counts": self._counts}

    async def _counts(self, call: Call, _: memoryview) -> Reply:
        found = await asked(open_batches(self._documents))
        batches = counts_of((one for one in found if one.owner == call.owner), self._clock())
        count, held_bytes = await asked(self._documents.held(call.owner, files.KIND))
        return Reply({"batches": asdict(batches), "files": {"count": count, "bytes": held_bytes}})
