"""What is kept of a batch: what its owner sees, and how far it has come."""

from typing import Any

import msgspec

from server.jobs.types import Document

KIND = "batch"
SERVER_FAULT = "server_error"  # the code of a batch that failed by our own fault
OPEN, ENDED = "open", "ended"  # states of its document
OPEN_STATUSES = ("validating", "in_progress", "finalizing", "cancelling")
_ENDS = ("completed", "failed", "expired", "cancelled")
_PROGRESS = ("completed", "failed", "offset", "number", "output_bytes", "error_bytes")
_STATUSES = OPEN_STATUSES + _ENDS  # of one claim none goes back


class BatchError(msgspec.Struct, frozen=True):
    """Why a whole batch failed."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """Times are unix seconds. From `total` on: what is committed, so all of it is on the disk, and no more counts."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    created_at: int
    expires_at: int
    output_file_id: str  # shown at the end, if there is such a file
    error_file_id: str
    status: str = "validating"
    times: dict[str, int] = {}  # "in_progress_at" and the like
    errors: tuple[BatchError, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    offset: int = 0  # bytes of the input that have been answered
    number: int = 0  # of the last line that has been answered
    output_bytes: int = 0
    error_bytes: int = 0
    reserved_bytes: int = 0  # for outputs; all of them find room in these
    has_expired: bool = False  # a line was not answered because of the time
    holder: str = ""  # the server that runs it, where several share a store
    held_until: float = 0.0  # unix seconds; then another one may claim it
    claim: str = ""  # its claim, which has outputs of its own; another one each time that it is claimed
    outputs_claim: str = ""  # whose outputs have what is committed

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDS

    def is_behind(self, other: "BatchState") -> bool:
        """Whether this is an earlier state of the same claim: a Redis that took over may lack the last writes."""
        return (
            self.number < other.number
            or _STATUSES.index(self.status) < _STATUSES.index(other.status)
            or self.outputs_claim != other.outputs_claim == other.claim
        )

    def anew(self) -> "BatchState":
        """Without an answer, for the outputs of its claim."""
        changes: dict[str, Any] = dict.fromkeys(_PROGRESS, 0)
        changes |= {"has_expired": False, "outputs_claim": self.claim}
        status = "in_progress" if self.status == "finalizing" else self.status
        return msgspec.structs.replace(self, status=status, **changes)

    def become(self, status: str, now: float, **changes: Any) -> "BatchState":
        """The next state, with the time when it began."""
        times = {**self.times, f"{status}_at": int(now)}
        return msgspec.structs.replace(self, status=status, times=times, **changes)

    def shown(self) -> dict[str, Any]:
        """In OpenAI's words."""
        names = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        errors = {"object": "list", "data": [msgspec.to_builtins(error) for error in self.errors]}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if self.has_ended and self.output_bytes else None,
            "error_file_id": self.error_file_id if self.has_ended and self.error_bytes else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{name}_at": self.times.get(f"{name}_at") for name in names},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }

    def document(self, owner: str, version: int = 1) -> Document:
        """What the store keeps; bytes of outputs are counted here until their files are seen."""
        held = 0 if self.has_ended else max(self.reserved_bytes, self.output_bytes + self.error_bytes)
        state = ENDED if self.has_ended else OPEN
        content = msgspec.json.encode(self)
        return Document(
            KIND, self.id, owner, state, content, created_at=self.created_at, held_bytes=held, version=version
        )


def state_of(document: Document) -> BatchState:
    return msgspec.json.decode(document.content, type=BatchState)
