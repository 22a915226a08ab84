"""The GPU suite on a CPU, over what stands in for tensorrt_llm: every check runs, and a planted mistake fails it.

Says nothing of TensorRT-LLM: what is held here is that the suite itself works where it is needed.
"""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.tensorrt_llm.models import pool
from tests.engine.tensorrt_llm.stand_in import library
from tests.tensorrt_llm_gpu import __main__ as suite
from tests.tensorrt_llm_gpu import written
from tests.tensorrt_llm_gpu.checks import checks
from tests.tensorrt_llm_gpu.child import job_from, outcome_of, read, write
from tests.tensorrt_llm_gpu.job import Job, Outcome, Shape, Speed
from tests.tensorrt_llm_gpu.judging import Check, Judge, Verdict, cosines, judged, refused, scores, served_or, speeds
from tests.tensorrt_llm_gpu.small_models import save
from tests.tiers import full

ROWS = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
JOB = Job(model="qwen3", by="engine", seqlens=(5, 17), shapes=(Shape(num_seqs=2, seqlen=8),))


@pytest.fixture
def stand_in() -> Iterator[None]:
    with library():
        yield


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tests.tensorrt_llm_gpu", *words])
    return suite.main()


def report_in(folder: Path) -> str:
    (file,) = folder.glob("*.md")
    return file.read_text()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("only", "num_checks"),
    [
        *full(
            ("window", 2),
            ("FP8 against bf16 in the same engine: qwen3", 1),
            ("qwen3, all see all", 3),
            ("roberta", 6),
            ("Upstream's own", 3),
        ),
        pytest.param("", 44, marks=[pytest.mark.nightly]),
    ],
)
def test_checks_pass_on_the_stand_in(
    only: str, num_checks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--toy", "--out", str(tmp_path), "--only", only) == 0

    report = report_in(tmp_path)
    assert f"{num_checks} of {num_checks} checks passed\n" in report
    assert written._TOY.upper() in report
    assert "not-a-result" in next(tmp_path.iterdir()).name
    assert f"{num_checks} of {num_checks} checks passed; written:" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.usefixtures("stand_in")
def test_a_model_of_ones_own_is_held_against_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save("qwen3, tame", tmp_path / "model")

    assert run(monkeypatch, "--toy", "--out", str(tmp_path / "out"), "--only", "named", "--model", str(folder)) == 0

    assert report_in(tmp_path / "out").count("passed |") == 3


@pytest.mark.full
@pytest.mark.usefixtures("stand_in")
def test_a_planted_mistake_fails_its_checks_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of the last token but one; where all are pooled, it does not matter."""
    monkeypatch.setattr(
        "engine.tensorrt_llm.models.pool",
        lambda rows, lengths, pooling: pool(rows if pooling == "mean" else rows.roll(1, 0), lengths, pooling),
    )

    assert run(monkeypatch, "--toy", "--out", str(tmp_path), "--only", "llama") == 1

    failed = [line.split(" | ")[0] for line in report_in(tmp_path).splitlines() if line.endswith("FAILED |")]
    assert {"| llama, last token", "| llama, scores", "| llama, answer: yes less no"} <= set(failed)
    assert "| llama, all see all, mean" not in failed


@pytest.mark.full
@pytest.mark.usefixtures("stand_in")
def test_what_fails_is_written_down_and_the_next_goes_on(tmp_path: Path) -> None:
    missing = Check("s", "missing", (Job(model=str(tmp_path / "none"), by="engine"),), speeds)
    fits = Check("s", "fits", (JOB,), speeds)

    (_, first), (_, second) = suite._run([missing, fits], suite._in_this_process, tmp_path)

    assert (first.has_passed, second.has_passed) == (False, True)
    assert "is not a folder" in first.found


@pytest.mark.full
def test_a_process_that_can_do_nothing_is_an_outcome(tmp_path: Path) -> None:
    outcome = suite._in_a_child(Job(model=str(tmp_path / "none"), by="transformers"), tmp_path)

    assert outcome.rows is None
    assert "is not a folder" in outcome.failure


def test_a_process_that_dies_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    assert suite._in_a_child(JOB, tmp_path).failure.startswith("ended with 1")


def test_jobs_and_outcomes_travel(tmp_path: Path) -> None:
    import json

    outcome = Outcome(rows=ROWS, max_num_tokens=7, speeds=(Speed("2 x 8", 1.5, 2.0),), notes=("a", "b"))
    write(outcome, tmp_path)
    found = read(tmp_path)

    assert job_from(json.dumps(dataclasses.asdict(JOB))) == JOB
    assert found.rows is not None
    assert np.array_equal(found.rows, ROWS)
    assert dataclasses.replace(found, rows=None) == dataclasses.replace(outcome, rows=None)


@pytest.mark.full
@pytest.mark.usefixtures("stand_in")
def test_the_reference_is_no_engine_of_ours(tmp_path: Path) -> None:
    """Only where the mask of a bidirectional model is right does its reference differ from the causal one's."""
    job = Job(model="llama, all see all", by="transformers", options={"dtype": "float32"}, seqlens=(17, 33))
    causal, both = outcome_of(dataclasses.replace(job, model="llama"), tmp_path), outcome_of(job, tmp_path)

    assert causal.rows is not None
    assert both.rows is not None
    assert np.abs(causal.rows - both.rows).max() > 0.01


def noisy(share: float) -> Outcome:
    return Outcome(rows=ROWS + share * np.random.default_rng(1).normal(size=ROWS.shape).astype(np.float32))


def with_bad_rows() -> Outcome:
    rows = ROWS.copy()
    rows[7:11] *= -1
    return Outcome(rows=rows)


RIGHT, SERVED = Outcome(rows=ROWS), Outcome(rows=ROWS, max_num_tokens=4096)
NO_MEMORY = Outcome(failure="DeviceTrouble: runs out of memory")
FALLEN, SHORT, NAN = Outcome(failure="it fell"), Outcome(rows=ROWS[:3]), Outcome(rows=np.full_like(ROWS, np.nan))
LEAST, MEDIAN = cosines(0.999), cosines(-1.0, median=0.998)
PERCENTILE = cosines(-1.0, median=0.998, first_percentile=0.995)


@pytest.mark.parametrize(
    ("judge", "outcomes", "has_passed", "words"),
    [
        (LEAST, [noisy(0.0), RIGHT], True, ""),
        (LEAST, [noisy(0.01), RIGHT], True, ""),
        (LEAST, [noisy(0.2), RIGHT], False, ""),
        (MEDIAN, [with_bad_rows(), RIGHT], True, ""),
        (PERCENTILE, [with_bad_rows(), RIGHT], False, ""),
        (LEAST, [with_bad_rows(), RIGHT], False, ""),
        (scores(0.05), [RIGHT, RIGHT], True, ""),
        (scores(0.05), [Outcome(rows=ROWS * 1.01), RIGHT], True, ""),
        (scores(0.05), [Outcome(rows=ROWS * 1.2), RIGHT], False, ""),
        *(
            (judge, [outcome, RIGHT], False, words)
            for judge in (cosines(0.9), scores(0.9))
            for outcome, words in ((FALLEN, "it fell"), (SHORT, "rows of shape"), (NAN, "not finite"))
        ),
        (refused("--max-input-length"), [Outcome(failure="… --max-input-length 64 …")], True, ""),
        (refused("--max-input-length"), [SERVED], False, "served"),
        (refused("--max-input-length"), [FALLEN], False, "it fell"),
        (served_or("out of memory"), [SERVED], True, "batches of 4096 tokens"),
        (served_or("out of memory"), [NO_MEMORY], True, ""),
        (served_or("out of memory"), [Outcome(failure="ended with -11")], False, ""),
        (speeds, [NO_MEMORY], False, ""),
    ],
)
def test_how_outcomes_are_judged(judge: Judge, outcomes: list[Outcome], has_passed: bool, words: str) -> None:
    verdict = judged(Check("s", "t", (), judge), outcomes)
    assert verdict.has_passed is has_passed
    assert words in verdict.found


def test_a_report_names_what_failed(tmp_path: Path) -> None:
    judged_ones = [
        (Check("One", "a | b", (), speeds), Verdict("x\ny", "z", True)),
        (Check("Two", "c", (), speeds), Verdict("bad", "", False)),
    ]

    path = written.write(
        judged_ones, tmp_path, machine="NVIDIA H100 80GB HBM3, 80 GiB", device="NVIDIA H100 80GB HBM3", is_toy=False
    )

    text = path.read_text()
    assert path.name.startswith("tensorrt-llm_h100-80gb-hbm3_")
    assert "- Machine: NVIDIA H100 80GB HBM3, 80 GiB\n" in text
    assert "- Result: 1 of 2 checks passed, 1 FAILED\n" in text
    assert "| c | bad |  | FAILED |" in text
    assert "x y" in text


def test_every_check_has_a_title_of_its_own() -> None:
    titles = [(check.section, check.title) for check in checks(model="/m", is_toy=False)]
    assert len(set(titles)) == len(titles)


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_without_a_gpu_or_the_package_it_says_so_in_one_line() -> None:
    command = [sys.executable, "-m", "tests.tensorrt_llm_gpu"]
    ended = subprocess.run(command, cwd=suite.ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "has no tensorrt_llm; ENGINE_PYTHON= names a Python that has" in ended.stderr


@pytest.mark.usefixtures("stand_in")
@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")
def test_without_a_gpu_it_does_not_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 1
    assert "sees no CUDA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [(("--toy",), "--out"), (("--model", "/no/folder"), "--model is not")])
def test_wrong_flags(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, *words)
    assert said in capsys.readouterr().err
