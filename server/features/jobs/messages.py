"""START of the jobs process, and the bounds of what frontends send it. server/features/jobs/calls.py has the calls."""

from dataclasses import dataclass, field

from server.features.jobs.feature import JobsFlags

CHUNK_BYTES = 1 << 20  # the most of a file in one call, in either direction
PIECE_BYTES = 64 * 1024  # of a file or a result that lies near: its client may not read it
MAX_BODY_BYTES = 4 << 20  # of one async request: more belongs into a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsStart:
    """The START message of the jobs process."""

    listener_fd: int  # where frontends connect
    flags: JobsFlags
    waits_for_folder: bool  # until the server that has it ends, as this one takes over from it
    http_path: str  # the Unix socket where frontends take this process's requests
    secret: str = field(repr=False)  # with which they may act for an API key
    max_in_flight: int  # requests that may be sent to frontends at a time
