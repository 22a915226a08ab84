"""The command line in this process."""

import pytest

from tests.server.settings.cli_runs import Run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)
