"""How the steps of the GPU benchmark share the time, and what becomes of those that end badly."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.gpu import model, plan
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.bench import Bench, TimeUp
from benchmarks.gpu.clock import CpuClock
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.plan import (
    KNOWN_MODELS,
    NEW_MODELS,
    PEERS,
    Step,
    deadline_of,
    figures_of_tests,
    first_steps,
    run_all,
    steps_of,
)
from benchmarks.gpu.rows import FAILED, Figure, Key, Rows
from benchmarks.gpu.shapes import QWEN3_06B, QWEN3_8B, TINY_BERT, TINY_QWEN3
from benchmarks.gpu.targets import BF16, FP8, SENTENCE_TRANSFORMERS
from tests.server_e2e.running import PATIENCE

LOG = """
[gw0] [ 10%] PASSED tests/engine/fused/gpu/test_fp8.py::test_few_long_rows[1]
tests/engine/fused/gpu/test_kernels.py::test_quantize[384]
[gw1] [ 20%] FAILED tests/engine/fused/gpu/test_kernels.py::test_quantize[384]
[gw1] [ 30%] SKIPPED tests/engine/fused/gpu/test_kernels.py::test_pool[384]
"""


def test_the_first_run_goes_by_value() -> None:
    steps = first_steps((NEW_MODELS, KNOWN_MODELS, PEERS))
    assert [step.part for step in steps] == [
        *("ceilings", "models", "probes", "models"),
        *["attention"] * 5,
        *("models", "tests"),
    ]
    assert str(steps[1]) == "models Qwen3-0.6B fused fp8 all-MiniLM-L6 fused bf16"
    assert steps[3].what[:4] == ("Qwen3-8B", FP8, "Qwen3-8B", BF16)
    assert [step.what for step in steps[4:9]][-1] == ("cuDNN in a graph",)
    asked = [(QWEN3_8B, SENTENCE_TRANSFORMERS), (QWEN3_06B, FP8)]
    (step,) = steps_of(["models"], asked)
    assert step.what == ("Qwen3-0.6B", FP8, "Qwen3-8B", SENTENCE_TRANSFORMERS)


def test_models_of_one_process_share_its_time_and_what_is_not_reached_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(tmp_path / "rows.csv", machine="m")
    bench = Bench(CpuClock(), rows, True, 1000.0)
    now, begun = [880.0], []

    def measured(_: Bench, subject: Subject) -> None:
        begun.append((subject.way, round(bench.deadline - now[0])))
        now[0] = bench.deadline + (15.0 if subject.way == BF16 else 0.0)
        raise TimeUp

    monkeypatch.setattr(model, "_run", measured)
    monkeypatch.setattr(model, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with pytest.raises(TimeUp):
        model.run_all(bench, [(TINY_BERT, FP8), (TINY_BERT, BF16), (TINY_BERT, SENTENCE_TRANSFORMERS)])
    assert begun == [(FP8, 56), (BF16, 43)]  # 1.3, 1.0 and 0.5 of 120 s; the last had 6 s left


def test_each_step_gets_its_share_of_what_is_left() -> None:
    steps = [Step("tests", 60.0), Step("ceilings", 30.0), Step("kernels", 30.0)]
    assert deadline_of(steps, 1000.0, 1120.0) == 1060.0
    assert deadline_of(steps[1:], 1020.0, 1120.0) == 1070.0  # the first left 40 s
    assert deadline_of(steps[2:], 1200.0, 1120.0) == 1200.0  # nothing is left


def run(steps: list[Step], code: str, seconds: float = 60.0, rows: Path = Path("no rows")) -> list[str]:
    return list(run_all(steps, [sys.executable, "-c", code, str(rows)], rows, deadline=time.monotonic() + seconds))


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
    assert Path(tmp_path, "ceilings").read_text() == "x" * 6
    assert Path(tmp_path, "kernels").read_text() == "x"


def test_a_step_that_does_not_stop_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_GRACE", 0.0)
    monkeypatch.setattr(plan, "_LEAST", 0.0)
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import threading; threading.Event().wait()'])"
    )
    troubles = run([Step("kernels", 1.0)], code, seconds=0.5)
    assert troubles == ["kernels: ended, because it did not stop in time"]


HANGS = """
import os, signal, sys
from pathlib import Path
from benchmarks.gpu.rows import Figure, Key, Rows
rows = Rows(Path(sys.argv[1]), machine="m")
for name in ("good", "bad", "behind it"):
    def figures():
        yield Figure("rate", 1.0, "")
        if name == "bad":
            os.kill(os.getpid(), signal.SIGSTOP)
    if Key("probe", name) not in rows:
        rows.add(Key("probe", name), figures())
"""


@pytest.mark.full
def test_what_hangs_is_ended_and_the_process_goes_on_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_PATIENCE", 3.0)
    path = tmp_path / "rows.csv"
    assert run([Step("probes", 1.0)], HANGS, rows=path) == []
    rows = Rows(path, machine="m")
    assert [(row.key.subject, row.figure.metric) for row in rows] == [
        *(("good", "rate"), ("bad", "rate"), ("bad", FAILED), ("behind it", "rate")),
    ]
    assert [row.figure.note for row in rows if row.figure.metric == FAILED] == ["nothing came of it for 3 s"]


@pytest.mark.full
def test_models_are_measured_to_their_end_beside_a_kill_and_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of two models is killed within the first one, and stopped within the second."""
    monkeypatch.setattr(plan, "_PATIENCE", 20.0)
    path, models = tmp_path / "rows.csv", [(TINY_QWEN3, BF16), (TINY_BERT, BF16)]
    signals = {"latency,toy Qwen3": signal.SIGKILL, "latency,toy BERT": signal.SIGSTOP}
    is_over = threading.Event()

    def trouble() -> None:
        while signals and not is_over.wait(0.05):
            text = path.read_text() if path.exists() else ""
            for what in [what for what in signals if what in text]:
                asked = subprocess.run(["pgrep", "-f", f"benchmarks.gpu.step --rows {path}"], stdout=subprocess.PIPE)
                os.kill(int(asked.stdout.split()[0]), signals.pop(what))

    troublemaker = threading.Thread(target=trouble)
    troublemaker.start()
    command = [sys.executable, "-m", "benchmarks.gpu.step", "--rows", str(path), "--machine", "m", "--device", "cpu"]
    steps = steps_of(["models"], models)
    assert list(run_all(steps, [*command, "--tiny"], path, deadline=time.monotonic() + 800)) == []
    is_over.set()
    troublemaker.join()
    assert not signals
    rows = Rows(path, machine="m")
    assert sum(row.figure.metric == FAILED for row in rows) <= 1  # it may be stopped between two
    for kind, shape in (("padding", "NaN"), ("mixed", "log-normal"), ("profile", "T=32 S=8 kernels")):
        assert all(Key(kind, one.name, way, shape) in rows for one, way in models)


def test_make_looks_for_a_python_once(tmp_path: Path) -> None:
    """Each look imports torch."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n')
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("GPU_PYTHON", "ARGS", "MAKEFLAGS"):  # of a make that runs the tests
        environment.pop(name, None)
    command = ["make", "first-gpu", f"OUT={tmp_path}"]
    subprocess.run(command, cwd=plan.ROOT, env=environment, capture_output=True, check=True)
    asked = Path(tmp_path, "asked").read_text().splitlines()
    assert asked == ["-c import torch; assert torch.cuda.is_available()", f"-m benchmarks.gpu --out {tmp_path}"]


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
from pathlib import Path
from benchmarks.gpu.plan import Step, run_all
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what it starts with &
command = [sys.executable, "-P", "-c", STEP, sys.argv[1]]
list(run_all([Step("tests", 1.0)], command, Path(sys.argv[1], "rows.csv"), deadline=time.monotonic() + 600))
"""


@pytest.mark.full
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
            process.wait(PATIENCE)
        finally:
            process.kill()
    assert Rows(tmp_path / "rows.csv", machine="m").value(Key("tests", f"{tmp_path}/alive"), "tests passed") == 1


def test_what_was_measured_until_ctrl_c_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(steps: Sequence[Step], command: Sequence[str], rows: Path, *, deadline: float) -> Iterator[str]:
        Rows(rows, machine="m").add(Key("machine", "x"), [Figure("run", 1.0, "")])
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
