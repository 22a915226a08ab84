"""`embedline backfill --ray` on a real Ray: killed and resumed, through deaths of workers, every row is exact."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.backfill.jobs import check, texts, write_jsonl
from tests.server.ray.cluster import environment, python_with_ray, servers_below
from tests.server_e2e.expected import DIMENSIONS
from tests.server_e2e.running import PATIENCE

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

NUM_PARTS = 40
COUNT = 25 * NUM_PARTS
ARGUMENTS = ("--id-column", "key", "--output-dtype", "float32", "--shard-rows", "25", "--max-errors", "3", "--resume")
CONFIG = f"""
engine = "fake"
fake-dim = {DIMENSIONS}
fake-tokens-per-second = 400.0
[ray]
num_cpus = 0.1
max_replicas = 2
"""


@contextlib.contextmanager
def started(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """The command, on a Ray of its own."""
    runtime = tempfile.mkdtemp(prefix="ray-")
    process = subprocess.Popen(
        [python_with_ray(), "-P", "-m", "embedline", "backfill", "in.jsonl", "out", *ARGUMENTS, "--ray", "config.toml"],
        env=environment(runtime),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # a Ray whose driver was killed ends by itself, but later
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "in.jsonl", texts(COUNT))
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


def num_parts(folder: Path) -> int:
    return len(list(folder.glob("out/part-*.parquet")))


def until_a_worker_has_written(folder: Path, process: "subprocess.Popen[str]") -> None:
    before = num_parts(folder)
    while not (servers_below(process.pid) and num_parts(folder) > before + 2):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
        assert process.poll() is None, process.communicate()


def test_killed_and_resumed_through_the_death_of_a_worker_every_row_is_exact(job: Path) -> None:
    with started(job) as process:
        until_a_worker_has_written(job, process)
        process.kill()
    assert 3 <= num_parts(job) < NUM_PARTS // 2
    with started(job) as process:
        until_a_worker_has_written(job, process)
        os.kill(servers_below(process.pid)[0], signal.SIGKILL)
        printed, said = process.communicate(timeout=PATIENCE)
    last = json.loads(printed.splitlines()[-1])
    assert (process.returncode, last["event"], last["rows"], last["failed"]) == (0, "done", COUNT, 3), said
    check(job / "out", texts(COUNT), [f"k{number}" for number in range(COUNT)])


def refusal(job: Path, config: str) -> str:
    """The last line of a job that comes to nothing."""
    (job / "config.toml").write_text(config)
    with started(job) as process:
        printed, said = process.communicate(timeout=2 * PATIENCE)
    assert (process.returncode, printed) == (1, "")
    return said.splitlines()[-1]


def test_workers_that_do_not_start_end_the_job_in_a_line(job: Path) -> None:
    said = refusal(job, 'model-id = "/nowhere"\n[ray]\nnum_cpus = 0.1')
    assert "a worker did not start in 3 tries: the server ended at its start: " in said


def test_a_cluster_without_room_ends_the_job_in_a_line(job: Path) -> None:
    said = refusal(job, 'engine = "fake"\n[ray]\nnum_cpus = 1000\nstart_seconds = 1')
    assert "the Ray cluster has no room for one in 61 s: one needs 1000 CPUs and 0 GPUs, and " in said
