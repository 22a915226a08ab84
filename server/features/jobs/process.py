"""The jobs process as the supervisor knows it: its plan, and the metrics that it counts."""

import sys

from server.features.jobs.feature import JOBS, JobsFlags
from server.features.jobs.messages import JobsStart
from server.metrics.declared import FROM_HALF_A_MILLISECOND, counter, gauge, histogram
from server.settings.settings import Settings
from server.supervisor.child import Need, Plan
from server.supervisor.socket_folder import Sidecar
from wire.metrics import SECONDS

_SHARE = 4  # of --max-concurrent-requests, what jobs may have open at a time …
_MAX_IN_FLIGHT = 128  # … and never more: enough to fill batches of single texts

# fmt: off
METRICS = (
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
    gauge("embedline_jobs_webhooks_pending", ("process",), "Webhooks that were not received yet.", "it keeps rising"),
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


def plan(settings: Settings, sidecar: Sidecar) -> Plan:
    """Its folder may be another server's: once it was ready, requests that somebody waits for need no jobs."""
    flags = settings.of(JobsFlags)
    assert flags.jobs is not None
    start = JobsStart(
        listener_fd=sidecar.calls.fd,
        folder=flags.jobs,
        redis=flags.jobs_redis,
        files=flags.jobs_files,
        waits_for_folder=settings.takeover,
        quota=flags.jobs_quota,
        result_ttl=flags.jobs_result_ttl,
        batch_ttl=flags.jobs_batch_ttl,
        key_share=flags.jobs_key_share,
        webhook_secrets=flags.jobs_webhook_secrets,
        private_webhooks=flags.jobs_private_webhooks,
        http_path=sidecar.http.path,
        secret=sidecar.secret,
        max_in_flight=max(1, min(_MAX_IN_FLIGHT, settings.max_concurrent_requests // _SHARE)),
    )
    return Plan(
        role=JOBS.name,
        index=0,
        module="server.features.jobs.main",
        python=sys.executable,
        fds=(start.listener_fd,),
        start=start,
        to_be_ready=Need.NEVER if settings.takeover else Need.ONCE,
        to_go_on=Need.NEVER,
        oom_score=200,
        takes_state=True,
    )
