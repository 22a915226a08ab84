"""What pipelines bring to a server, and their flag."""

from dataclasses import dataclass
from pathlib import Path

from server.feature import Feature
from server.settings.flag import SettingsError, check_flags, flag


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

    @property
    def is_on(self) -> bool:
        """Whether there is a file."""
        return self.pipelines is not None


PIPELINES = Feature(
    name="pipelines",
    flags=PipelinesFlags,
    switch="--pipelines FILE.py",
    process="server.features.pipelines.process:plan",
    metrics="server.features.pipelines.process:METRICS",
    frontend="server.features.pipelines.routes:make_part",
    routes={
        ("GET", "/pipelines"): "The pipelines of --pipelines, with their schemas",
        ("POST", "/pipelines/{name}"): "Run a pipeline; GET /pipelines has the schema of its body",
    },
    passed_on="/pipelines/{name}",
    documents="server.features.pipelines.routes:add_pipeline_routes",
)
