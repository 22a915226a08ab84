"""An object store that is away while the jobs process is started again: only what needs the store waits."""

from pathlib import Path

import pytest

from tests.server.jobs.served.asking import accepted, ended
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import serving


@pytest.mark.faults
def test_a_process_that_is_started_again_does_not_need_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    flags = (*FAKE, "--jobs", str(tmp_path / "jobs"), "--jobs-files", f"file://{store}")
    with serving(*flags, folder=tmp_path) as server:
        store.rename(tmp_path / "away")
        store.write_text("in its place")
        seen = len(server.log.lines)
        server.kill("jobs 0")
        server.log.wait_for("jobs 0 is ready", after=seen)
        assert ended(server, accepted(server, {"input": "hello"}))["status"] == "SUCCEEDED"
