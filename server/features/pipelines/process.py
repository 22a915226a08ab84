"""The process of pipelines as the supervisor starts it."""

import os

from server.features.pipelines.feature import PIPELINES, PipelinesFlags
from server.features.pipelines.messages import PipelinesStart
from server.settings.settings import Settings
from server.supervisor.child import Need, Plan
from server.supervisor.socket_folder import FeatureSockets

_SHARE = 4  # of --max-concurrent-requests: the rest is for the requests of their steps …
_MAX_RUNS = 128  # … and never more


def plan(settings: Settings, sockets: FeatureSockets) -> Plan:
    """The plan of the process. Where it never starts the server ends, for the file is wrong; later it is tried again
    for ever."""
    flags = settings.of(PipelinesFlags)
    assert flags.pipelines is not None
    start = PipelinesStart(
        listener_fd=sockets.calls.fd,
        file=os.path.abspath(flags.pipelines),
        http_path=sockets.http.path,
        secret=sockets.secret,
        max_runs=max(1, min(_MAX_RUNS, settings.max_concurrent_requests // _SHARE)),
    )
    return Plan(
        role=PIPELINES.name,
        module="server.features.pipelines.main",
        fds=(start.listener_fd,),
        start=start,
        to_go_on=Need.ONCE,
        oom_score=400,
    )
