"""The pipelines feature of a server, and their flag."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from server.feature import Feature
from server.settings.flag import SettingsError, check_flags, flag

if TYPE_CHECKING:
    from server.metrics.declared import Declared


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesFlags:
    """The flags of pipelines."""

    pipelines: str | None = flag(
        None,
        "Pipelines",
        "Run the pipelines of this Python file in a process beside the server, for POST /pipelines/{name}. The file is "
        "run with the rights of this user, as gunicorn runs an application: give only one that you trust. It may "
        "import what lies beside it. Without it the routes of pipelines answer 404.",
        default_text="off",
    )

    def __post_init__(self) -> None:
        """Raises SettingsError where there is no such file."""
        check_flags(self)
        if self.pipelines is not None and not Path(self.pipelines).is_file():
            raise SettingsError("--pipelines takes a Python file, and there is none at this path")


# fmt: off
def metrics() -> "Sequence[Declared]":
    """The metrics that the process counts."""
    from server.metrics.declared import FROM_HALF_A_MILLISECOND, counter, gauge, histogram
    from wire.metrics import SECONDS

    return (
        counter("embedline_pipeline_runs_total", ("pipeline", "outcome"),
            "Runs that ended: `ok`, `failed` with an error, `cancelled` its client left, `refused` too many run.",
            "`failed` or `refused` rises"),
        histogram("embedline_pipeline_seconds", ("pipeline",),
            "Time of a run in the pipelines process.", SECONDS, FROM_HALF_A_MILLISECOND),
        gauge("embedline_pipelines_running", ("process",), "Runs that are under way, up to a second ago."),
    )
# fmt: on


PIPELINES = Feature(
    name="pipelines",
    flags=PipelinesFlags,
    switch=("pipelines", "FILE.py"),
    process="server.features.pipelines.process:plan",
    metrics=metrics,
    frontend="server.features.pipelines.routes:make_part",
    routes={
        ("GET", "/pipelines"): "The pipelines of --pipelines, with their schemas",
        ("POST", "/pipelines/{name}"): "Run a pipeline; GET /pipelines has the schema of its body",
    },
    documents="server.features.pipelines.routes:PIPELINE_ROUTES",
)
