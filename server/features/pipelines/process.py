"""The process of pipelines as the supervisor knows it: its plan, and the metrics that it counts."""

import os
import sys

from server.features.pipelines.feature import PIPELINES, PipelinesFlags
from server.features.pipelines.messages import PipelinesStart
from server.metrics.declared import FROM_HALF_A_MILLISECOND, counter, gauge, histogram
from server.settings.settings import Settings
from server.supervisor.child import Need, Plan
from server.supervisor.socket_folder import Sidecar
from wire.metrics import SECONDS

_SHARE = 4  # of --max-concurrent-requests: the rest is for the requests of their steps …
_MAX_RUNS = 128  # … and never more

# fmt: off
METRICS = (
    counter("embedline_pipeline_runs_total", ("pipeline", "outcome"),
        "Runs that ended: `ok`, `failed` with an error, `cancelled` its client left, `refused` too many run.",
        "`failed` or `refused` rises"),
    histogram("embedline_pipeline_seconds", ("pipeline",),
        "Time of a run in the pipelines process.", SECONDS, FROM_HALF_A_MILLISECOND),
    gauge("embedline_pipelines_running", ("process",), "Runs that are under way, up to a second ago."),
)
# fmt: on


def plan(settings: Settings, sidecar: Sidecar) -> Plan:
    """Where it never starts the server ends, for the file is wrong; later it is tried again for ever."""
    flags = settings.of(PipelinesFlags)
    assert flags.pipelines is not None
    start = PipelinesStart(
        listener_fd=sidecar.calls.fd,
        file=os.path.abspath(flags.pipelines),
        http_path=sidecar.http.path,
        secret=sidecar.secret,
        max_runs=max(1, min(_MAX_RUNS, settings.max_concurrent_requests // _SHARE)),
    )
    return Plan(
        role=PIPELINES.name,
        index=0,
        module="server.features.pipelines.main",
        python=sys.executable,
        fds=(start.listener_fd,),
        start=start,
        to_go_on=Need.ONCE,
        oom_score=400,
    )
