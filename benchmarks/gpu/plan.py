"""Steps, each in a process of its own, and how they share the time. Nothing here computes.

A step that needs less than its share leaves the rest to those behind it. One that needs more is told to stop, and ended
if it does not. A process that dies (a lost device, too) is started again while its step has time; what it was at is
tried once more, then left out. Whatever ends, also by Ctrl-C, ends with all that it started: they are one group.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.rows import Figure, Key, Rows
from benchmarks.gpu.shapes import QWEN3_06B, QWEN3_8B, Shape
from benchmarks.gpu.targets import BF16, FP8, SENTENCE_TRANSFORMERS

ROOT = Path(__file__).resolve().parents[2]
TESTS, CEILINGS, ATTENTION, KERNELS, MODELS, COLD_STARTS, SERVER = PARTS = (
    *("tests", "ceilings", "attention", "kernels"),
    *("models", "cold-starts", "server"),
)
FIRST = (TESTS, CEILINGS, ATTENTION, KERNELS, MODELS)
FIRST_MODELS = (
    (QWEN3_8B, FP8), (QWEN3_8B, BF16), (QWEN3_06B, BF16), (QWEN3_06B, SENTENCE_TRANSFORMERS),
)  # fmt: skip
_SECONDS = {TESTS: 75.0, CEILINGS: 55.0, ATTENTION: 45.0, KERNELS: 30.0, COLD_STARTS: 240.0, SERVER: 240.0}
_SECONDS_OF_MODEL = {FP8: 90.0, BF16: 60.0}
_SECONDS_OF_OTHERS = 35.0
_GRACE = 15.0  # seconds between being told to stop, in effect, and being ended
_STOPPING = 10.0  # seconds, from the same as Ctrl-C to being killed
_LEAST = 5.0  # seconds; what a process takes to begin
_MAX_STARTS = 4
_TESTS = "tests/engine/fused/gpu"
_PYTEST = (
    *("-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "--confcutdir", _TESTS, "--import-mode=importlib"),
    *("-p", "no:cacheprovider", "-v", "-rfE", "--tb=short"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """What one process measures."""

    part: str
    seconds: float  # its share beside those of the others
    model: str = ""  # a shape's name
    way: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.part, self.model, self.way)))


def steps_of(parts: Sequence[str], models: Sequence[tuple[Shape, str]]) -> list[Step]:
    """In this order; the models' one by one, other people's engines last."""
    found = []
    for part in parts:
        if part != MODELS:
            found.append(Step(part, _SECONDS[part]))
            continue
        for shape, way in sorted(models, key=lambda model: model[1] not in (FP8, BF16)):
            found.append(Step(MODELS, _SECONDS_OF_MODEL.get(way, _SECONDS_OF_OTHERS), shape.name, way))
    return found


def deadline_of(steps: Sequence[Step], now: float, deadline: float) -> float:
    """Of the first of these, which are all that are left: its share of the time that is left."""
    return now + max(0.0, deadline - now) * steps[0].seconds / sum(step.seconds for step in steps)


def run_all(steps: Sequence[Step], command: Sequence[str], *, deadline: float) -> Iterator[str]:
    """Each step by this command; what became of those that did not end well."""
    for index, step in enumerate(steps):
        until = deadline_of(steps[index:], time.monotonic(), deadline)
        if until - time.monotonic() < _LEAST:
            trouble = "no time was left for it"
        else:
            trouble = _run(step, [*command, "--step", step.part, step.model, step.way, "--until", str(until)], until)
        if trouble:
            yield f"{step}: {trouble}"


def _run(step: Step, command: Sequence[str], until: float) -> str:
    """Empty if it ended by itself, its time up or not."""
    for _ in range(_MAX_STARTS):
        print(f"\n== {step}: {max(0.0, until - time.monotonic()):.0f} s", flush=True)
        code = _ended(command, until + _GRACE)
        if code == 0:
            return ""
        if code is None:
            return "ended, because it did not stop in time"
        if time.monotonic() > until:
            break
    return f"its process ended with {code}"


def _ended(command: Sequence[str], until: float) -> int | None:
    """Its exit code; None where it had to be ended. Nothing that it started is left."""
    process = subprocess.Popen(command, cwd=ROOT, process_group=0)
    try:
        return _exit_code(process, until)
    finally:
        try:
            _signal(process, signal.SIGINT)  # a server of its own group is only stopped by the step
            _exit_code(process, time.monotonic() + _STOPPING)
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()


def _exit_code(process: subprocess.Popen[bytes], until: float) -> int | None:
    """None if it has not ended by then."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(max(0.1, until - time.monotonic()))
    return None


def _signal(leader: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, number)


def run_tests(rows: Rows, log: Path, *, num_processes: int, until: float) -> None:
    """The tests that need a GPU, in parallel. What passed is counted from the log, so also if they are ended.

    In the step's own group of processes: what pytest leaves behind ends with the step.
    """
    key = Key("tests", _TESTS)
    if rows.value(key, "exit code") in (0, 1):  # all of them have ended, well or not
        return
    command = [sys.executable, *_PYTEST, "-n", str(num_processes), _TESTS]
    code = None
    with log.open("w") as output, subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT) as tests:
        try:
            code = _exit_code(tests, until)
        finally:
            tests.kill()
            rows.add(key, figures_of_tests(log.read_text(), code))


def figures_of_tests(log: str, code: int | None) -> list[Figure]:
    """How many tests ended how, by the lines of pytest -v with xdist."""
    found = re.findall(r"^\[gw\d+\].*? (PASSED|FAILED|SKIPPED|ERROR) (\S+)", log, re.MULTILINE)
    bad = [test.rpartition("/")[2] for outcome, test in found if outcome in ("FAILED", "ERROR")]
    notes = {"FAILED": "; ".join(dict.fromkeys(bad))[:2000]}
    counts = [
        Figure(f"tests {outcome.lower()}", [one for one, _ in found].count(outcome), "", notes.get(outcome, ""))
        for outcome in ("PASSED", "FAILED", "SKIPPED", "ERROR")
    ]
    ended = "they were ended" if code is None else "" if code in (0, 1) else f"pytest ended with {code}"
    return [*counts, Figure("exit code", float("nan") if code is None else code, "", ended)]
