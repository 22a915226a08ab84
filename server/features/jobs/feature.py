"""The jobs feature of a server, and its flags: where work is kept that nobody waits for, how much and how long."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from server.feature import Feature, Group
from server.settings.flag import SettingsError, check_flags, flag

if TYPE_CHECKING:
    from server.metrics.declared import Declared

_GIB = 1 << 30
_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsFlags:
    """The flags of jobs."""

    jobs: str | None = flag(
        None,
        "Jobs",
        "Take async requests, files and batches, and keep them and their results in this folder. It is made where it "
        "is missing, for this user alone (0700), and belongs to one server at a time; a later server with the same "
        "folder goes on with what is in it. Use a disk of this machine, not a network's, but for what several servers "
        "share with --jobs-redis. Without it the routes of jobs answer 404.",
        default_text="off",
    )
    jobs_redis: str | None = flag(
        None,
        "Jobs",
        "Keep async requests and their results in this Redis, redis://… or rediss://…, in place of the folder of "
        "--jobs: several servers with the same one share one queue. They share the folder of --jobs too, for files and "
        "batches, on a file system that each of them mounts. Every user of this machine can read a command line, so "
        "give a URL with a password by the variable EMBEDLINE_JOBS_REDIS. Redis has to be 7 or later, with "
        "maxmemory-policy noeviction and appendonly yes, and appendfsync always where nothing may be lost. Needs the "
        "extra: pip install 'embedline[redis]'.",
        is_secret=True,
    )
    jobs_files: str | None = flag(
        None,
        "Jobs",
        "Keep files of clients and of batches here, s3://bucket/prefix or another URL that fsspec knows, in place of "
        "the folder of --jobs. What is being written, and the input of a batch while it runs, is in that folder all "
        "the same. The environment says how the store is reached: a URL with a password is refused. Needs pip install "
        "'embedline[backfill]' and the store's own package, such as s3fs.",
        default_text="the folder of --jobs",
    )
    jobs_quota: int = flag(
        10 * _GIB,
        "Jobs",
        "The most bytes of requests, results and files. When they are used up, new async requests and uploads are "
        "refused with 503 before they are accepted, and batches wait; what was accepted is kept.",
        least=1 << 20,
    )
    jobs_result_ttl: float = flag(
        86_400.0,
        "Jobs",
        "Seconds from the end of an async request until its result is removed. Choose what your clients may need to "
        "fetch it; the quota has to hold the results of so long a time.",
        least=1,
    )
    jobs_key_share: float = flag(
        0.5,
        "Jobs",
        "The most of --jobs-quota that one API key may hold, 0.01 to 1, so that no key takes all of the room. "
        "Of requests that wait it may have the same part of what all may have. With several keys choose a part that "
        "leaves room for the others together; 1 lets a key take all. A server without API keys has no such bound.",
        least=0.01,
        most=1,
    )
    jobs_batch_ttl: float = flag(
        30 * 86_400.0,
        "Jobs",
        "Seconds from the end of a batch until it is forgotten; its files stay. A client can remove it before, with "
        "DELETE /v1/batches/ID.",
        least=1,
    )
    jobs_webhook_secrets: str | None = flag(
        None,
        "Jobs",
        "A file with the secret that webhooks are signed with: `whsec_` and 24 to 64 bytes in base64. To change it, "
        "put the new one above the old one, move your receivers over, then remove the old one; the file is read again "
        "when it changes. Without it webhooks are not signed.",
        default_text="none",
    )
    jobs_private_webhooks: bool = flag(
        False,
        "Jobs",
        "Let webhooks go to addresses of private networks and of this machine, on any port, and to this machine by "
        "plain http. Whoever may send async requests can then reach what this server can reach.",
    )

    def __post_init__(self) -> None:
        """Raises SettingsError for the first of these settings that can't be."""
        check_flags(self)
        if self.jobs == "":
            raise SettingsError("--jobs takes the path of a folder")
        if self.jobs is None and self.jobs_webhook_secrets is not None:
            raise SettingsError("--jobs-webhook-secrets needs --jobs")
        self._check_files()
        if self.jobs_redis is None:
            return
        if self.jobs is None:
            raise SettingsError("--jobs-redis needs --jobs DIR")
        if not self.jobs_redis.startswith(_REDIS_SCHEMES):
            raise SettingsError(f"--jobs-redis takes a URL that begins with one of {', '.join(_REDIS_SCHEMES)}")
        if find_spec("redis") is None:
            raise SettingsError("--jobs-redis needs a package that is not installed: pip install 'embedline[redis]'")

    def _check_files(self) -> None:
        if self.jobs_files is None:
            return
        if self.jobs is None:
            raise SettingsError("--jobs-files needs --jobs DIR")
        scheme, separator, place = self.jobs_files.partition("://")
        if not separator or not scheme.isalnum() or not place:
            raise SettingsError("--jobs-files takes one URL, as s3://bucket/prefix; a folder is named by --jobs")
        if "@" in place or "?" in place:
            raise SettingsError("--jobs-files takes a URL without a name, a password or options")
        if find_spec("fsspec") is None:
            raise SettingsError("--jobs-files needs a package that is not installed: pip install 'embedline[backfill]'")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsStart:
    """The START message of the jobs process."""

    listener_fd: int  # where frontends connect
    flags: JobsFlags
    waits_for_folder: bool  # until the server that has it ends, as this one takes over from it
    http_path: str  # the Unix socket where frontends take this process's requests
    secret: str = field(repr=False)  # with which they may act for an API key
    max_in_flight: int  # requests that may be sent to frontends at a time


# fmt: off
def metrics() -> "Sequence[Declared]":
    """The metrics that the process counts."""
    from server.metrics.declared import FROM_HALF_A_MILLISECOND, counter, gauge, histogram
    from wire.metrics import SECONDS

    return (
        counter("embedline_jobs_accepted_total", ("priority",), "Async requests that were accepted."),
        counter("embedline_jobs_total", ("outcome",),
            "Async requests that ended: `succeeded`, `failed`, `expired` they waited longer than they may, `canceled`.",
            "`expired` rises: the server is too small for the load, or the times too short",
            zeros=("succeeded", "failed", "expired", "canceled")),
        histogram("embedline_jobs_run_seconds", (),
            "From the begin of an async request to its end, with all attempts and the waits between them.",
            SECONDS, FROM_HALF_A_MILLISECOND),
        gauge("embedline_jobs_queued", ("process", "priority"), "Async requests that wait, up to a second ago."),
        gauge("embedline_jobs_oldest_age_seconds", ("process",), "For how long the oldest of them has waited.",
            "it comes close to the `max_time_in_queue_seconds` that your clients send"),
        gauge("embedline_jobs_in_progress", ("process",), "Async requests that run, up to a second ago."),
        counter("embedline_jobs_webhook_attempts_total", ("outcome",),
            "Attempts to deliver a webhook: `delivered`, `failed` it is tried again, `given_up` it is not.",
            "`given_up` rises", zeros=("delivered", "failed", "given_up")),
        gauge("embedline_jobs_webhooks_pending", ("process",), "Webhooks that were not received yet.",
            "it keeps rising"),
        gauge("embedline_jobs_batches_open", ("process", "status"),
            "Batches that have not ended: `validating` they wait, `in_progress`, `finalizing`, `cancelling`.",
            "`validating` keeps rising"),
        counter("embedline_jobs_batch_lines_total", ("outcome",),
            "Lines of batches whose output is on the disk: `completed`, `failed`.", "`failed` rises",
            zeros=("completed", "failed")),
        counter("embedline_jobs_batches_total", ("outcome",),
            "Batches that ended: `completed`, `failed` as a whole, `expired`, `cancelled`.",
            "`failed` or `expired` rises", zeros=("completed", "failed", "expired", "cancelled")),
        counter("embedline_jobs_batch_faults_total", (),
            "Batches that failed as a whole by the server's own fault, after several tries.", "it is not 0"),
        gauge("embedline_jobs_held_bytes", ("process",), "What --jobs-quota bounds.", "it comes close to --jobs-quota"),
    )
# fmt: on


JOBS = Feature(
    name="jobs",
    commands={
        "jobs": Group(
            help="What API keys hold at a running server.",
            functions={
                "held": "server.features.jobs.command:held",
                "remove": "server.features.jobs.command:remove",
            },
        )
    },
    flags=JobsFlags,
    switch=("jobs", "DIR"),
    process="server.features.jobs.process:plan",
    metrics=metrics,
    frontend="server.features.jobs.routes:make_part",
    routes={
        ("POST", "/async_predict"): "Keep a request for any route of this server, and run it later (Baseten's async "
        "inference)",
        ("GET", "/async_request/{request_id}"): "What became of an async request",
        ("GET", "/async_request/{request_id}/result"): "What its route answered, byte for byte; 202 until then",
        ("DELETE", "/async_request/{request_id}"): "Cancel an async request that is still queued",
        ("GET", "/async_queue_status"): "How many async requests of this API key wait and run",
        ("GET", "/jobs"): "The same by priority, with the age of the oldest, the room they take, open batches, files",
        ("POST", "/v1/files"): "Upload the lines of a batch, of any size that has room (OpenAI's)",
        ("GET", "/v1/files"): "The files of this API key, the newest first",
        ("GET", "/v1/files/{file_id}"): "What is known of a file",
        ("DELETE", "/v1/files/{file_id}"): "Remove a file",
        ("GET", "/v1/files/{file_id}/content"): "The bytes of a file",
        ("POST", "/v1/batches"): "Run each line of a file as a request (OpenAI's)",
        ("GET", "/v1/batches"): "The batches of this API key, the newest first",
        ("GET", "/v1/batches/{batch_id}"): "How far a batch has come",
        ("DELETE", "/v1/batches/{batch_id}"): "Forget a batch that has ended; its files stay",
        ("POST", "/v1/batches/{batch_id}/cancel"): "Begin no more lines of a batch",
    },
    documents="server.features.jobs.routes:JOB_ROUTES",
)
