"""The jobs process as a plan, and the sockets between it and the frontends."""

import secrets
import sys
from dataclasses import dataclass

from server.jobs.messages import JobsStart
from server.settings.settings import Settings
from server.supervisor.child import Plan
from server.supervisor.socket_folder import ListeningSocket, SocketFolder

_SHARE = 4  # of --max-concurrent-requests, what jobs may have open at a time …
_MAX_IN_FLIGHT = 128  # … and never more: enough to fill batches of single texts


@dataclass(frozen=True, slots=True)
class JobsSockets:
    """How frontends and the jobs process reach each other."""

    calls: ListeningSocket  # where the process takes calls of frontends
    http: ListeningSocket  # where frontends take its requests
    secret: str  # which it sends with them

    @staticmethod
    def listen(folder: SocketFolder) -> "JobsSockets":
        """Bound and kept here, so that either side may be restarted."""
        calls, http = (ListeningSocket(*folder.listen(name)) for name in ("jobs", "jobs-http"))
        return JobsSockets(calls, http, secrets.token_hex(32))


def jobs_process(sockets: JobsSockets, settings: Settings) -> Plan:
    """The plan. There is a folder in the settings."""
    assert settings.jobs is not None
    start = JobsStart(
        listener_fd=sockets.calls.fd,
        folder=settings.jobs,
        redis=settings.jobs_redis,
        files=settings.jobs_files,
        waits_for_folder=settings.takeover,
        quota=settings.jobs_quota,
        result_ttl=settings.jobs_result_ttl,
        batch_ttl=settings.jobs_batch_ttl,
        key_share=settings.jobs_key_share,
        webhook_secrets=settings.jobs_webhook_secrets,
        private_webhooks=settings.jobs_private_webhooks,
        http_path=sockets.http.path,
        secret=sockets.secret,
        max_in_flight=max(1, min(_MAX_IN_FLIGHT, settings.max_concurrent_requests // _SHARE)),
    )
    return Plan(
        role="jobs",
        index=0,
        module="server.jobs.main",
        python=sys.executable,
        fds=(start.listener_fd,),
        start=start,
    )
