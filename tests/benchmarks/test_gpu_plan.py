"""How the steps of the GPU benchmark share the time, and what becomes of those that end badly."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import plan
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.plan import (
    FIRST,
    FIRST_MODELS,
    Step,
    deadline_of,
    figures_of_tests,
    run_all,
    steps_of,
)
from benchmarks.gpu.rows import Figure, Key, Rows
from benchmarks.gpu.shapes import QWEN3_06B, QWEN3_8B
from benchmarks.gpu.targets import BF16, FP8, SENTENCE_TRANSFORMERS

LOG = """
[gw0] [ 10%] PASSED tests/engine/fused/gpu/test_fp8.py::test_few_long_rows[1]
tests/engine/fused/gpu/test_kernels.py::test_quantize[384]
[gw1] [ 20%] FAILED tests/engine/fused/gpu/test_kernels.py::test_quantize[384]
[gw1] [ 30%] SKIPPED tests/engine/fused/gpu/test_kernels.py::test_pool[384]
"""


def test_the_first_run_begins_with_what_matters_most() -> None:
    steps = steps_of(FIRST, FIRST_MODELS)
    assert [str(step) for step in steps] == [
        *("tests", "ceilings", "attention", "kernels"),
        *(f"models {QWEN3_8B.name} {FP8}", f"models {QWEN3_8B.name} {BF16}", f"models {QWEN3_06B.name} {BF16}"),
        f"models {QWEN3_06B.name} {SENTENCE_TRANSFORMERS}",
    ]
    asked = [(QWEN3_8B, SENTENCE_TRANSFORMERS), (QWEN3_06B, FP8)]
    assert [step.way for step in steps_of(["models"], asked)] == [FP8, SENTENCE_TRANSFORMERS]


def test_each_step_gets_its_share_of_what_is_left() -> None:
    steps = [Step("tests", 60.0), Step("ceilings", 30.0), Step("kernels", 30.0)]
    assert deadline_of(steps, 1000.0, 1120.0) == 1060.0
    assert deadline_of(steps[1:], 1020.0, 1120.0) == 1070.0  # the first left 40 s
    assert deadline_of(steps[2:], 1200.0, 1120.0) == 1200.0  # nothing is left


def run(steps: list[Step], code: str, seconds: float = 60.0) -> list[str]:
    return list(run_all(steps, [sys.executable, "-c", code], deadline=time.monotonic() + seconds))


def test_a_step_that_ends_badly_takes_no_other_with_it(tmp_path: Path) -> None:
    code = f"""
import os, sys
step = sys.argv[sys.argv.index("--step") + 1]
with open({str(tmp_path)!r} + "/" + step, "a") as file:
    file.write("x")
if step == "ceilings":
    os.abort()
"""
    troubles = run([Step("ceilings", 1.0), Step("kernels", 1.0)], code)
    assert troubles == ["ceilings: its process ended with -6"]
    assert Path(tmp_path, "ceilings").read_text() == "xxxx"
    assert Path(tmp_path, "kernels").read_text() == "x"


def test_a_step_that_does_not_stop_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_GRACE", 0.0)
    monkeypatch.setattr(plan, "_LEAST", 0.0)
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import threading; threading.Event().wait()'])"
    )
    troubles = run([Step("kernels", 1.0)], code, seconds=0.5)
    assert troubles == ["kernels: ended, because it did not stop in time"]


DEAF = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
alive = open(sys.argv[-1], "w")
print("[gw0] [ 10%] PASSED tests/a.py::one", flush=True)
alive.write("begun\\n")
alive.flush()
threading.Event().wait()
"""
STEP = """
import signal, sys, time
from pathlib import Path
from benchmarks.gpu import plan
from benchmarks.gpu.rows import Rows
signal.signal(signal.SIGINT, signal.default_int_handler)
plan._PYTEST, plan._TESTS = ("-c", DEAF), sys.argv[1] + "/alive"
folder = Path(sys.argv[1])
plan.run_tests(Rows(folder / "rows.csv", machine="m"), folder / "log", num_processes=1, until=time.monotonic() + 600)
"""
PLAN = """
import signal, sys, time
from benchmarks.gpu.plan import Step, run_all
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what it starts with &
list(run_all([Step("tests", 1.0)], [sys.executable, "-P", "-c", STEP, sys.argv[1]], deadline=time.monotonic() + 600))
"""


@pytest.mark.full
@pytest.mark.timeout(60)
def test_ctrl_c_ends_tests_that_are_deaf_to_it_and_they_are_counted(tmp_path: Path) -> None:
    """Only the plan is told, as by `kill`. The pipe that the innermost process holds is closed once it has ended."""
    step = STEP.replace("DEAF", repr(DEAF))
    os.mkfifo(tmp_path / "alive")
    command = [sys.executable, "-P", "-c", PLAN.replace("STEP", repr(step)), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(plan.ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            with Path(tmp_path, "alive").open() as alive:
                assert alive.readline() == "begun\n"
                process.send_signal(signal.SIGINT)
                assert alive.read() == ""
            process.wait(60)
        finally:
            process.kill()
    assert Rows(tmp_path / "rows.csv", machine="m").value(Key("tests", f"{tmp_path}/alive"), "tests passed") == 1


def test_what_was_measured_until_ctrl_c_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(steps: Sequence[Step], command: Sequence[str], *, deadline: float) -> Iterator[str]:
        Rows(Path(command[command.index("--rows") + 1]), machine="m").add(Key("machine", "x"), [Figure("run", 1.0, "")])
        yield "ceilings: its process ended with 3"
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "run_all", interrupted)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--device", "cpu", "--tiny", "--out", str(tmp_path)])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="130"):
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    (report,) = tmp_path.glob("*.md")
    assert "ceilings: its process ended with 3" in report.read_text()
    assert "interrupted; the same command goes on from here" in report.read_text()


def test_what_has_no_time_left_is_not_begun() -> None:
    assert run([Step("kernels", 1.0), Step("server", 1.0)], "", seconds=6.0) == ["kernels: no time was left for it"]


@pytest.mark.parametrize(
    ("code", "note"), [(1, ""), (None, "they were ended"), (4, "pytest ended with 4")], ids=["all", "some", "none"]
)
def test_tests_are_counted_by_their_log(code: int | None, note: str) -> None:
    figures = {figure.metric: figure for figure in figures_of_tests(LOG, code)}
    counts = {name: figures[f"tests {name}"].value for name in ("passed", "failed", "skipped", "error")}
    assert counts == {"passed": 1, "failed": 1, "skipped": 1, "error": 0}
    assert figures["tests failed"].note == "test_kernels.py::test_quantize[384]"
    assert figures["exit code"].note == note
