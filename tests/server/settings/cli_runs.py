"""Runs the command line without a server, and keeps the settings that it would start with."""

import sys

import pytest

from server import cli
from server.settings.flag import flags_of
from server.settings.model import ModelSettings
from server.settings.settings import Settings, server_flags

FLAGS = [*server_flags(), *flags_of(ModelSettings)]


VARIABLES = [variable for flag in FLAGS for variable in flag.variables]


class Ran(Exception):
    """In place of a running server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


class Run:
    """`embedline …` in this process, up to where the server would start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No variable of ours is set."""

        def run_server(settings: Settings) -> int:
            raise Ran(settings)

        self._monkeypatch = monkeypatch
        monkeypatch.setattr("server.commands.serve.serve", run_server)
        for variable in ("EMBEDLINE_CONFIG", *VARIABLES):
            monkeypatch.delenv(variable, raising=False)

    def environment(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def settings(self, *arguments: str) -> Settings:
        with pytest.raises(Ran) as ran:
            self("serve", *arguments)
        return ran.value.settings

    def exit_code(self, *arguments: str) -> object:
        with pytest.raises(SystemExit) as ended:
            self(*arguments)
        return ended.value.code

    def __call__(self, *arguments: str) -> None:
        self._monkeypatch.setattr(sys, "argv", ["embedline", *arguments])
        cli.main()
