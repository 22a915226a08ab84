"""A feature as anybody could add it: a process that answers with a word, and asks this very server for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.feature import Feature
from server.settings.flag import SettingsError, check_flags, flag


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoFlags:
    echo: str | None = flag(None, "Echo", "Answer GET /echo with this word.", default_text="off")

    def __post_init__(self) -> None:
        check_flags(self)
        if self.echo == "":
            raise SettingsError("--echo takes a word")


def metrics() -> Sequence[Any]:
    from server.metrics.declared import counter

    return (counter("embedline_echoes_total", (), "Words that were echoed."),)


ECHO = Feature(
    name="echo",
    flags=EchoFlags,
    switch=("echo", "WORD"),
    process="server.features.echo.process:plan",
    metrics=metrics,
    frontend="server.features.echo.frontend:make_part",
    routes={("GET", "/echo"): "The word of --echo"},
    documents="server.features.echo.frontend:ROUTES",
)
