"""The whole command with its own engine: killed at any moment and resumed, it writes every row once; memory is flat."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from server import cli
from tests.server.backfill.jobs import check, command, end, kill_amid, texts, url_of, write_jsonl, written
from tests.server_e2e.expected import DIMENSIONS
from tests.server_e2e.running import PATIENCE, Server

COUNT = 4000
ENGINE = ("--engine", "fake", "--fake-dim", str(DIMENSIONS), "--fake-tokens-per-second", "20000")
JOB = ("--id-column", "key", "--output-dtype", "float32", "--shard-rows", "200")


@pytest.mark.full
@pytest.mark.holds("Each row of a backfill is written exactly once")
def test_a_job_that_is_killed_and_resumed_writes_what_one_run_writes(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", texts(COUNT))
    killed, whole, chance = tmp_path / "killed", tmp_path / "whole", random.Random(18)
    for _ in range(20):
        with command(source, killed, *JOB, *ENGINE, "--resume") as process:
            try:
                process.communicate(timeout=chance.uniform(1.0, 3.5))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
    for out in (killed, whole):
        code, last, said = end(command(source, out, *JOB, *ENGINE, "--resume"))
        assert (code, last["event"], last["rows"], last["failed"]) == (1, "done", COUNT, 3), said
    check(killed, texts(COUNT), [f"k{number}" for number in range(COUNT)])
    names = sorted(path.name for path in whole.glob("*[!n]"))
    assert [(killed / name).read_bytes() for name in names] == [(whole / name).read_bytes() for name in names]


@pytest.mark.full
@pytest.mark.holds("Each row of a backfill is written exactly once")
def test_real_rows_of_a_killed_job_are_those_that_the_server_gives(tmp_path: Path, real_server: Server) -> None:
    values = [f"Note {number} " + "and more " * (number % 7) for number in range(600)]
    source, out, chance = write_jsonl(tmp_path / "in.jsonl", values), tmp_path / "out", random.Random(18)
    form = ("--id-column", "key", "--output-dtype", "float32", "--shard-rows", "20", "--resume")
    job = (source, out, *form, "--url", url_of(real_server))

    def num_parts() -> int:
        return len(list(out.glob("part-*.parquet")))

    for _ in range(5):
        enough = num_parts() + chance.randint(1, 3)
        kill_amid(command(*job), lambda enough=enough: num_parts() >= enough)  # type: ignore[misc]
    assert 5 <= num_parts() < 30
    code, last, said = end(command(*job))
    assert (code, last["rows"]) == (0, 600), said
    ids, rows = written(out)
    assert ids == [f"k{number}" for number in range(600)]
    direct = np.frombuffer(real_server.embed(values, encoding_format="bytes").body, np.float32).reshape(600, -1)
    assert np.abs(np.array(rows) - direct).max() < 1e-5


def test_a_signal_stops_it_in_order_and_it_can_be_resumed(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", texts(20_000))
    with command(source, tmp_path / "out", *JOB, *ENGINE) as process:
        while not list((tmp_path / "out").glob("part-*.parquet")):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert said.strip() == "embedline: stopped by a signal; --resume goes on"
    assert json.loads(printed.splitlines()[-1])["event"] == "stopped"


@pytest.mark.parametrize(
    ("location", "out", "arguments", "words"),
    [
        ("in.csv", "out", "--worker 2/2", "--worker must be like 0/4"),
        ("in.csv", "out", "--format lance", "--format must be one of: parquet, npy"),
        ("in.csv", "out", "--output-dtype int8", "--output-dtype must be one of: float16, float32"),
        ("in.csv", "out", "--url http://h --pooling cls", "--pooling can't be given with --url"),
        ("in.csv", "out", "--ray c --pooling cls", "--pooling can't be given with --ray"),
        ("in.csv", "out", "--ray c --worker 0/2", "--worker can't be given with --ray"),
        ("in.csv", "out", "--url h", "--url: base_url must be like"),
        ("in.csv", "out", "--column words", "has no column words"),
        ("in.csv", "out", "--engine warp", "--engine warp is not one of"),
        ("in.csv", "out", "--status", "OUT has no job"),
        ("", "out", "", "IN is empty"),
        ("in.csv", "", "", "OUT is empty"),
        ("in.csv", "postgresql://h/d", "", "--job-folder must name a folder"),
        ("in.csv", "out", "--table t", "--job-folder and --table are for an OUT that is a database"),
    ],
)
def test_what_is_wrong_is_one_line(
    location: str,
    out: str,
    arguments: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, as nothing is started; it goes on with signal handlers of its own."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("text\na\n")
    monkeypatch.setattr(sys, "argv", ["embedline", "backfill", location, out, *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert (ended.value.code, words in said, said.count("\n")) == (2, True, 1), said


@pytest.mark.parametrize(
    ("few", "many"),
    [
        pytest.param(20_000, 100_000, marks=[pytest.mark.full]),
        pytest.param(100_000, 1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_memory_is_flat_in_the_number_of_rows(few: int, many: int, tmp_path: Path, fake_server: Server) -> None:
    peaks = []
    for count in (few, many):
        source = write_jsonl(tmp_path / f"{count}.jsonl", texts(count))
        out = tmp_path / f"out-{count}"
        job = (source, out, "--shard-rows", "5000", "--max-errors", "100000", "--url", url_of(fake_server))
        with command(*job, module="tests.server.backfill.measured") as process:
            printed, said = process.communicate()
        assert process.returncode == 0, said
        print(f"{count} rows: {printed}")
        peaks.append(json.loads(printed.splitlines()[-1])["peak_kib"])
    assert peaks[1] < peaks[0] + 30_000, f"{peaks} KiB"
