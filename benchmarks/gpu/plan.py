"""Steps, each in a process of its own, and how they share the time. Nothing here computes.

A step that needs less than its share leaves the rest to those behind it. One that needs more is told to stop, and ended
if it does not. A process that dies (a lost device, too) is started again while its step has time; what it was at is
tried once more, then left out. One that hangs, so that no row comes for a while, is ended and started again, without
what it was at. Whatever ends, also by Ctrl-C, ends with all that it started: they are one group.
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

from benchmarks.gpu.attention_cases import BY_BOXES, CANDIDATES, CUDNN, FLASH, TILES
from benchmarks.gpu.rows import Figure, Key, Rows, machine_of
from benchmarks.gpu.shapes import BERT_BASE, BGE_M3, MINILM, QWEN3_06B, QWEN3_8B, Shape
from benchmarks.gpu.targets import BF16, COMPILED, FP8, GRAPH, SENTENCE_TRANSFORMERS

ROOT = Path(__file__).resolve().parents[2]
TESTS, CEILINGS, ATTENTION, KERNELS, MODELS, HEADS, PROBES, SERVER = PARTS = (
    *("tests", "ceilings", "attention", "kernels"),
    *("models", "heads", "probes", "server"),
)
Models = Sequence[tuple[Shape, str]]
# What was never measured comes first, what has been measured once behind it.
NEW_MODELS: Models = ((QWEN3_06B, FP8), (MINILM, BF16))
KNOWN_MODELS: Models = (
    (QWEN3_8B, FP8), (QWEN3_8B, BF16), (QWEN3_06B, BF16), (BGE_M3, BF16), (BERT_BASE, BF16),
)  # fmt: skip
PEERS: Models = (
    (QWEN3_06B, GRAPH), (BERT_BASE, GRAPH), (BERT_BASE, COMPILED), (BERT_BASE, SENTENCE_TRANSFORMERS),
    (QWEN3_06B, COMPILED),
)  # fmt: skip
_SECONDS = {
    TESTS: 75.0, CEILINGS: 25.0, KERNELS: 30.0, HEADS: 240.0, PROBES: 30.0, SERVER: 260.0,
}  # fmt: skip
_SECONDS_OF_MODEL = {FP8: 45.0, BF16: 38.0, COMPILED: 30.0}
_SECONDS_OF_OTHERS = 12.0
# Of these a process takes 8 to 10 before it measures.
_SECONDS_OF_ATTENTION = {TILES: 28.0, BY_BOXES: 20.0, FLASH: 14.0, CUDNN: 14.0}
_SECONDS_OF_OTHER_ATTENTION = 11.0
_GRACE = 15.0  # seconds between being told to stop, in effect, and being ended
_STOPPING = 10.0  # seconds, from the same as Ctrl-C to being killed
_PATIENCE, _LONG_PATIENCE = 45.0, 120.0  # seconds; see Silence
_WAITS = (TESTS, SERVER)  # which write rows at long intervals, and end by themselves what hangs
_LEAST = 5.0  # seconds; what a process takes to begin
_MAX_STARTS = 6
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
    what: tuple[str, ...] = ()  # a candidate for attention; or models, a shape's name and a way of each

    def __str__(self) -> str:
        return " ".join((self.part, *self.what))


@dataclass(frozen=True, slots=True)
class Silence:
    """No row for so many seconds: a process is then taken to hang."""

    rows: Path
    seconds: float


def first_steps(models: Sequence[Models]) -> list[Step]:
    """What a GPU is asked in ten minutes, by value: ceilings, what is new, what is known already, tests last."""
    new, known, peers = (steps_of([MODELS], group) for group in models)
    return [
        *steps_of([CEILINGS]),
        *new,
        *steps_of([PROBES]),
        *known,
        *steps_of([ATTENTION]),
        *peers,
        *steps_of([TESTS]),
    ]


def steps_of(parts: Sequence[str], models: Models = ()) -> list[Step]:
    """In this order; all models in one process, other people's engines last."""
    found = []
    for part in parts:
        if part == ATTENTION:
            found += [
                Step(part, _SECONDS_OF_ATTENTION.get(name, _SECONDS_OF_OTHER_ATTENTION), (name,)) for name in CANDIDATES
            ]
        elif part == MODELS:
            ordered = sorted(models, key=lambda model: model[1] not in (FP8, BF16))
            seconds = sum(_SECONDS_OF_MODEL.get(way, _SECONDS_OF_OTHERS) for _, way in ordered)
            found.append(Step(part, seconds, tuple(word for shape, way in ordered for word in (shape.name, way))))
        else:
            found.append(Step(part, _SECONDS[part]))
    return found


def deadline_of(steps: Sequence[Step], now: float, deadline: float) -> float:
    """Of the first of these, which are all that are left: its share of the time that is left."""
    return now + max(0.0, deadline - now) * steps[0].seconds / sum(step.seconds for step in steps)


def run_all(steps: Sequence[Step], command: Sequence[str], rows: Path, *, deadline: float) -> Iterator[str]:
    """Each step by this command, which writes these rows; what became of those that did not end well."""
    for index, step in enumerate(steps):
        until = deadline_of(steps[index:], time.monotonic(), deadline)
        if until - time.monotonic() < _LEAST:
            trouble = "no time was left for it"
        else:
            words = [*command, "--until", str(until), "--step", step.part, *step.what]
            trouble = _run(step, words, rows, until)
        if trouble:
            yield f"{step}: {trouble}"


def _run(step: Step, command: Sequence[str], rows: Path, until: float) -> str:
    """Empty if it ended by itself, its time up or not."""
    trouble = ""
    is_slow = step.part == HEADS or COMPILED in step.what  # loads whole engines, or compiles
    silence = Silence(rows, _LONG_PATIENCE if is_slow else _PATIENCE)
    for _ in range(_MAX_STARTS):
        print(f"\n== {step}: {max(0.0, until - time.monotonic()):.0f} s", flush=True)
        code = _ended(command, until + _GRACE, None if step.part in _WAITS else silence)
        if code == 0:
            return ""
        trouble = "ended, because it did not stop in time" if code is None else f"its process ended with {code}"
        if code is None and time.monotonic() < until:
            fail_unfinished(rows, f"nothing came of it for {silence.seconds:.0f} s")
            trouble = "ended, because it hung"
        if time.monotonic() + _LEAST > until:
            break
    return trouble


def _ended(command: Sequence[str], until: float, silence: Silence | None) -> int | None:
    """Its exit code; None where it had to be ended, also for want of rows. Nothing that it started is left."""
    process = subprocess.Popen(command, cwd=ROOT, process_group=0)
    hangs = False
    try:
        code = _exit_code(process, until, silence)
        hangs = code is None and time.monotonic() < until
        return code
    finally:
        try:
            if not hangs:
                _signal(process, signal.SIGINT)  # a server of its own group is only stopped by the step
                _exit_code(process, time.monotonic() + _STOPPING)
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()


def _exit_code(process: subprocess.Popen[bytes], until: float, silence: Silence | None = None) -> int | None:
    """None if it has not ended by then, or no row has come for too long."""
    known, patience_ends = -1, until
    while time.monotonic() < min(until, patience_ends):
        size = silence.rows.stat().st_size if silence and silence.rows.exists() else 0
        if silence and size != known:
            known, patience_ends = size, time.monotonic() + silence.seconds
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(max(0.1, min(until - time.monotonic(), 1.0)))
    return process.poll()


def fail_unfinished(path: Path, why: str) -> None:
    """What was begun last and has no end is not tried again."""
    if path.exists():
        rows = Rows(path, machine=machine_of(path))
        if (key := rows.unfinished()) is not None:
            rows.fail(key, why)


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
