"""The jobs process as the supervisor starts it."""

from server.features.jobs.feature import JOBS, JobsFlags
from server.features.jobs.messages import JobsStart
from server.settings.settings import Settings
from server.supervisor.child import Need, Plan
from server.supervisor.socket_folder import Sidecar

_SHARE = 4  # of --max-concurrent-requests, what jobs may have open at a time …
_MAX_IN_FLIGHT = 128  # … and never more: enough to fill batches of single texts


def plan(settings: Settings, sidecar: Sidecar) -> Plan:
    """The process's folder may be another server's: once it was ready, requests that somebody waits for need no
    jobs."""
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
        module="server.features.jobs.main",
        fds=(start.listener_fd,),
        start=start,
        to_be_ready=Need.NEVER if settings.takeover else Need.ONCE,
        to_go_on=Need.NEVER,
        oom_score=200,
        takes_state=True,
    )
