"""START of the jobs process, and the bounds of what frontends send it. server/features/jobs/calls.py has the calls."""

from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 20  # the most of a file in one call, in either direction
PIECE_BYTES = 64 * 1024  # of a file or a result that lies near: its client may not read it
MAX_BODY_BYTES = 4 << 20  # of one async request: more belongs into a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsStart:
    """The START message of the jobs process."""

    listener_fd: int  # where frontends connect
    folder: str  # --jobs
    redis: str | None = field(repr=False)  # --jobs-redis: a URL, maybe with a password
    files: str | None = field(repr=False)  # --jobs-files: a URL, maybe with a password
    waits_for_folder: bool  # until the server that has it ends, as this one takes over from it
    quota: int  # bytes
    result_ttl: float  # seconds that ended requests are kept
    batch_ttl: float  # seconds that what is known of ended batches is kept
    key_share: float  # of the quota, the most that one key may hold
    webhook_secrets: str | None  # the file they are in
    private_webhooks: bool  # whether they may go to private addresses
    http_path: str  # the Unix socket where frontends take this process's requests
    secret: str  # with which they may act for an API key
    max_in_flight: int  # requests that may be sent to frontends at a time
