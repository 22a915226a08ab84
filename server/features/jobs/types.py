"""A kept request, from its arrival to its end, as its store and those who run it see it.

All times are unix seconds of the store's clock. `owner` is the name of the API key that the request came with, "" where
the server has no keys. Statuses are named as Baseten names them.
"""

from dataclasses import dataclass, field
from enum import StrEnum

NUM_PRIORITIES = 3  # 0 goes first
Headers = tuple[tuple[str, str], ...]


class Status(StrEnum):
    """The status of a request. All but the first two are its end."""

    QUEUED = "QUEUED"
    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"  # it waited longer than its max_time_in_queue
    CANCELED = "CANCELED"
    WEBHOOK_FAILED = "WEBHOOK_FAILED"  # it succeeded and its webhook was given up; the result is kept all the same


class WebhookStatus(StrEnum):
    """The status of the message that tells a request's end."""

    NO_WEBHOOK_PROVIDED = "NO_WEBHOOK_PROVIDED"
    PENDING = "PENDING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"  # as its request


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Baseten's `inference_retry_config`: the waits double from the first to the longest."""

    max_attempts: int = 3
    initial_delay_ms: int = 1000
    max_delay_ms: int = 5000


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request to keep: `body` is sent by POST to `route` (a path of this server) with `headers`."""

    owner: str
    route: str
    body: bytes
    headers: Headers = ()
    priority: int = 0  # below NUM_PRIORITIES
    max_time_in_queue: float = 600.0  # seconds
    retry: RetryPolicy = RetryPolicy()
    webhook_endpoint: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class JobError:
    """One of Baseten's codes, and what happened in words. Repeats no text of a user."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of the route, byte for byte.     num_bytes  of the whole body, where `body` is a part of it"""

    status_code: int
    headers: Headers
    body: bytes
    content_type: str = "application/json"
    num_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class RequestView:
    """The fields of a request that its owner may know."""

    request_id: str
    route: str
    priority: int
    status: Status
    webhook_status: WebhookStatus
    created_at: float
    status_at: float  # when `status` became what it is
    errors: tuple[JobError, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request that is to be run now by whoever claimed it."""

    request_id: str
    owner: str
    route: str
    headers: Headers
    body: bytes
    priority: int
    retry: RetryPolicy
    created_at: float
    num_claims: int  # this one counted; more than 1 after a crash or a release


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request: with what its route answered (`result`), or with errors, or with both."""

    status: Status  # SUCCEEDED or FAILED
    result: Result | None = None
    errors: tuple[JobError, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook that is to be sent now. `num_attempts` counts those that were begun, this one included."""

    request_id: str
    owner: str
    endpoint: str
    status: Status  # how the request ended
    ended_at: float
    result: Result | None
    errors: tuple[JobError, ...]
    num_attempts: int


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The numbers of requests that wait and run. `queued` has a number for each priority; ages are seconds, 0 where
    nothing waits."""

    queued: tuple[int, ...]
    oldest_age: float
    in_progress: int
    webhooks_pending: int
    held_bytes: int  # of the whole store, whoever asks
    quota_bytes: int


@dataclass(frozen=True, slots=True)
class Document:
    """A small JSON text that the store keeps: what is known of a file or a batch.

    `state` is a word that documents can be found by. `held_bytes` are those of a file that the document stands for:
    they count towards the store's quota. `version` begins at 1 and grows with each change; the store sets it.
    """

    kind: str  # "file" or "batch"
    document_id: str
    owner: str
    state: str
    content: bytes
    created_at: float
    held_bytes: int = 0
    version: int = 1
