"""IN and OUT on a server that speaks S3's protocol: killed and resumed, shared by workers, refused in one line."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.server.backfill.jobs import check, end, texts, write_jsonl
from tests.server.backfill.s3 import S3, running_s3
from tests.server_e2e.expected import DIMENSIONS

pytestmark = [pytest.mark.clients, pytest.mark.full]

COUNT, NUM_PARTS = 3000, 60
IDS = [f"k{number}" for number in range(COUNT)]
ENGINE = ("--engine", "fake", "--fake-dim", str(DIMENSIONS), "--fake-tokens-per-second", "20000")
JOB = ("--id-column", "key", "--output-dtype", "float32", "--shard-rows", "50", "--max-errors", "3", "--resume")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with running_s3() as server:
        content = write_jsonl(tmp_path_factory.mktemp("s3") / "in.jsonl", texts(COUNT)).read_bytes()
        half = content.index(b"\n", len(content) // 2) + 1
        server.put("in/a.jsonl", content[:half])
        server.put("in/b.jsonl", content[half:])
        yield server


def fetched(s3: S3, prefix: str, folder: Path) -> Path:
    """A copy of all that is there."""
    folder.mkdir()
    for name in s3.names(prefix):
        (folder / name).write_bytes(s3.get(f"{prefix}/{name}"))
    return folder


@pytest.mark.holds("Each row of a backfill is written exactly once")
def test_a_job_from_s3_to_s3_that_is_killed_and_resumed_writes_what_one_run_writes(s3: S3, tmp_path: Path) -> None:
    chance = random.Random(18)
    for _ in range(5):
        seen = len(s3.log.lines)
        with s3.start(s3.url("in"), s3.url("killed"), *JOB, *ENGINE) as process:
            s3.until_parts_are_put(chance.randint(1, 9), after=seen)
            process.kill()
            process.communicate()
    assert 5 < len([name for name in s3.names("killed") if name.endswith(".parquet")]) < NUM_PARTS
    for out in ("killed", "whole"):
        code, last, said = end(s3.start(s3.url("in"), s3.url(out), *JOB, *ENGINE))
        assert (code, last["event"], last["rows"], last["failed"]) == (0, "done", COUNT, 3), said
    killed, whole = (fetched(s3, out, tmp_path / out) for out in ("killed", "whole"))
    check(killed, texts(COUNT), IDS)
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }


def test_workers_share_a_prefix_and_what_was_removed_is_computed_again(s3: S3, tmp_path: Path) -> None:
    arguments = (s3.url("in"), s3.url("shared"), *JOB, *ENGINE, "--format", "npy")
    both = [s3.start(*arguments, "--worker", f"{number}/2") for number in range(2)]
    assert [end(process)[0] for process in both] == [0, 0]
    for name in ("part-00007.npy", "part-00050.parquet"):
        s3.delete(f"shared/{name}")
    _, last, _ = end(s3.start(s3.url("in"), s3.url("shared"), "--status"))
    assert (last["parts_done"], last["rows"], last["is_done"]) == (NUM_PARTS - 2, COUNT - 100, False)
    assert end(s3.start(*arguments))[0] == 0
    found = fetched(s3, "shared", tmp_path / "shared")
    rows = np.concatenate([np.load(part) for part in sorted(found.glob("*.npy"))])
    assert rows.shape == (COUNT, DIMENSIONS)
    assert np.flatnonzero(np.isnan(rows[:, 0])).tolist() == [3, 40, 77]


def test_of_two_jobs_that_begin_in_one_place_at_once_one_is_refused(s3: S3) -> None:
    inputs = (s3.url("in"), s3.url("raced"), *ENGINE, *JOB)
    both = [s3.start(*inputs), s3.start(*inputs, "--column", "key")]
    ends = sorted(end(process)[::2] for process in both)
    assert [code for code, _ in ends] == [0, 2], ends
    assert "embedline: OUT is of another job: column was" in ends[1][1]
    assert len([name for name in s3.names("raced") if name.endswith(".parquet")]) == NUM_PARTS


@pytest.mark.parametrize(
    ("location", "out", "code", "words"),
    [
        ("s3://bucket/nothing", "s3://bucket/out", 2, "IN can't be read: there is nothing"),
        ("s3://bucket/in", "s3://no-bucket/out", 1, "can't be written: The specified bucket does not exist"),
        ("s3://bucket/in", "s3://bucket/in", 2, "OUT lies in IN"),
        ("s3://bucket/in/a.jsonl", "s3://bucket/in", 2, "OUT has files and no manifest of a job"),
        ("s3://key:se-cret@bucket/in", "s3://bucket/out", 2, "IN must have no password in its URL"),
    ],
)
def test_what_is_wrong_is_one_line(location: str, out: str, code: int, words: str, s3: S3) -> None:
    found, _, said = end(s3.start(location, out, *ENGINE))
    assert (found, words in said, said.count("\n")) == (code, True, 1), said
    assert "se-cret" not in said
