"""The jobs process as the supervisor starts it."""

from server.features.jobs.feature import JOBS, JobsFlags, JobsStart
from server.settings.settings import Settings
from server.supervisor.child import Need, Plan
from server.supervisor.socket_folder import FeatureSockets

_SHARE = 4  # of --max-concurrent-requests, what jobs may have open at a time …
_MAX_IN_FLIGHT = 128  # … and never more: enough to fill batches of single texts


def plan(settings: Settings, sockets: FeatureSockets) -> Plan:
    """The process's folder may be another server's: once it was ready, requests that somebody waits for need no
    jobs."""
    start = JobsStart(
        listener_fd=sockets.calls.fd,
        flags=settings.of(JobsFlags),
        waits_for_folder=settings.takeover,
        http_path=sockets.http.path,
        secret=sockets.secret,
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
