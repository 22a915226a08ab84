"""A disk that is full, and the death of the jobs process meanwhile: what was accepted ends once there is room again."""

from pathlib import Path

import pytest

from tests.server.jobs.served.asking import ended, result
from tests.server.jobs.small_disk import fill, small_disk
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import serving

DISK = 16 << 20  # bytes
TEXT = "x" * 200_000
MAX_REQUESTS = 2 * DISK // len(TEXT)  # more than find room


@pytest.mark.faults
@pytest.mark.full
@pytest.mark.holds("An accepted async request ends exactly once")
def test_what_was_accepted_before_the_disk_was_full_ends(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    flags = (*FAKE, "--fake-cost-ms", "500", "--jobs", str(disk / "kept"))
    with small_disk(disk, DISK), serving(*flags, folder=tmp_path) as server:
        ids = []
        for _ in range(MAX_REQUESTS):
            answer = server.request("POST", "/async_predict", {"model_input": {"input": [TEXT]}})
            if answer.status != 202:
                break
            ids.append(answer.json()["request_id"])
        assert (answer.status, answer.headers["retry-after"]) == (503, "10")
        fill(disk / "of others")
        seen = len(server.log.lines)
        server.kill("jobs 0")
        assert server.embed("hello").status == 200
        (disk / "of others").unlink()
        server.log.wait_for("jobs 0 is ready", after=seen)
        assert {ended(server, request_id)["status"] for request_id in ids} == {"SUCCEEDED"}
        assert {result(server, request_id).status for request_id in ids} == {200}
