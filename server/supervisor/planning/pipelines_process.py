"""The pipelines process as a plan, and the sockets between it and the frontends."""

import os
import secrets
import sys
from dataclasses import dataclass

from server.frontend.start import PipelinesAddress
from server.pipelines.messages import PipelinesStart
from server.settings.settings import Settings
from server.supervisor.child import Plan
from server.supervisor.socket_folder import ListeningSocket, SocketFolder

_SHARE = 4  # of --max-concurrent-requests: the rest is for the requests of their steps …
_MAX_RUNS = 128  # … and never more


@dataclass(frozen=True, slots=True)
class PipelinesSockets:
    """How frontends and the pipelines process reach each other."""

    runs: ListeningSocket  # where the process takes runs of frontends
    http: ListeningSocket  # where frontends take the requests of its steps
    secret: str  # which these carry

    @property
    def address(self) -> PipelinesAddress:
        """What frontends are told."""
        return PipelinesAddress(self.runs.path, self.secret, self.http.fd)

    @staticmethod
    def listen(folder: SocketFolder) -> "PipelinesSockets":
        """Bound and kept here, so that either side may be restarted."""
        runs, http = (ListeningSocket(*folder.listen(name)) for name in ("pipelines", "pipelines-http"))
        return PipelinesSockets(runs, http, secrets.token_hex(32))


def pipelines_process(sockets: PipelinesSockets, settings: Settings) -> Plan:
    """The plan. There is a file in the settings."""
    assert settings.pipelines is not None
    start = PipelinesStart(
        listener_fd=sockets.runs.fd,
        file=os.path.abspath(settings.pipelines),
        http_path=sockets.http.path,
        secret=sockets.secret,
        max_runs=max(1, min(_MAX_RUNS, settings.max_concurrent_requests // _SHARE)),
    )
    return Plan(
        role="pipelines",
        index=0,
        module="server.pipelines.main",
        python=sys.executable,
        fds=(start.listener_fd,),
        start=start,
    )
