"""benchmarks.gpu on a CPU at toy sizes: every part runs, goes on where it was stopped, and claims nothing.

What the numbers are is never asserted; what they are computed from is.
"""

import csv
import dataclasses
import json
import os
import queue
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.gpu import beside, card, mixed, report
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import CpuClock, hold, median_seconds
from benchmarks.gpu.kernel_cases import cases
from benchmarks.gpu.random_models import batch_of, save_tokenizer, text_of
from benchmarks.gpu.rows import FAILED, Rows
from benchmarks.gpu.server import unpacked
from benchmarks.gpu.shapes import TINY_BERT
from benchmarks.gpu.targets import CACHED, FP8, SENTENCE_TRANSFORMERS
from engine.types import Batch, Engine, EngineLimits, OutputKind
from tests.benchmarks.bare_python import bare_python

ROOT = Path(__file__).resolve().parents[2]


def run(target: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """By make, in an environment that has what a GPU's machine has, and no more."""
    python = bare_python(out.with_name("bare"))
    given = (f"OUT={out}", f"GPU_PYTHON={python}", "ARGS=--device cpu --tiny", *words)
    return subprocess.run(["make", target, *given], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def read(out: Path) -> list[dict[str, str]]:
    (file,) = out.glob("*.csv")
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "rows.csv", machine="this one")


def bench_of(rows: Rows, *, seconds: float = 1000.0) -> Bench:
    return Bench(CpuClock(), rows, True, time.monotonic() + seconds)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_first_gpu_is_measured_from_end_to_end_and_labelled(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run("first-gpu", out)
    assert ran.returncode == 0, ran.stderr
    assert len(list(out.iterdir())) <= 6
    found = read(out)
    assert {row["kind"] for row in found} == {
        *("import", "machine", "tests", "ceiling", "gemm", "attention", "probe", "probe of products"),
        *("model", "profile", "latency", "padding", "beside bulk", "cosine", "mixed", "ratio"),
    }
    (skipped,) = [float(row["value"]) for row in found if row["metric"] == "tests skipped"]
    assert skipped > 300
    failed = [row for row in found if row["metric"] == FAILED]
    assert {(row["precision"], row["note"].partition(":")[0]) for row in failed} <= {
        (SENTENCE_TRANSFORMERS, "ModuleNotFoundError")
    }
    assert {row["machine"] for row in found} == {report.TOY}
    (csv_file,) = out.glob("*.csv")
    assert "not-a-measurement" in csv_file.name
    text = csv_file.with_suffix(".md").read_text()
    assert report.TOY.upper() in text
    assert "reached |" not in text.lower()
    assert "Not well" not in text
    check_figures(found)
    carried = tmp_path / "carried.csv"
    carried.write_bytes(csv_file.read_bytes())
    again = run("bench-gpu", tmp_path / "again", "PARTS=tests kernels", f"RESUME={carried}")
    assert again.returncode == 0, again.stderr
    assert {row["kind"] for row in read(tmp_path / "again")[len(found) :]} == {"import", "machine", "kernel"}


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_part_alone(tmp_path: Path) -> None:
    ran = run("bench-gpu", tmp_path / "out", "PARTS=kernels")
    assert ran.returncode == 0, ran.stderr
    found = read(tmp_path / "out")
    assert {row["kind"] for row in found} == {"import", "machine", "kernel"}
    check_figures(found)


def check_figures(found: list[dict[str, str]]) -> None:
    """Those that are right or wrong whatever the machine."""
    for row in found:
        value = float(row["value"])
        if row["metric"] == "error":
            assert value < (0.05 if row["precision"] == "fp8 out" else 0.01), row
        if row["kind"] == "cosine" and row["metric"] in ("lowest", "median"):
            assert value > (0.98 if "fp8" in row["precision"] else 0.99999), row
        if row["metric"] in ("changed rows", "bulk failed", "interactive failed"):
            assert value == 0, row
        if (row["kind"], row["metric"], row["precision"]) == ("cold start", "to the first embedding", FP8):
            assert ("quantized weights taken from" in row["note"]) == (row["shape"] == CACHED), row


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("part", "kind"), [("cold-starts", "cold start"), ("server", "server")])
def test_what_takes_longer_than_a_first_run(part: str, kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", part, "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = read(tmp_path)
    assert {row["kind"] for row in found} == {"import", "machine", kind}
    assert [row for row in found if row["metric"] == FAILED] == []
    check_figures(found)


@pytest.mark.full
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "kernels", "--device", "cpu", "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "--device cpu is for --tiny alone" in ran.stderr


def test_no_report_of_toy_sizes_lies_among_the_results() -> None:
    assert not list((ROOT / "benchmarks/results").glob("*not-a-measurement*"))


def test_every_call_of_a_round_is_made(rows: Rows) -> None:
    made: list[int] = []
    calls = [lambda: made.append(0), lambda: made.append(1)]
    assert median_seconds(CpuClock(), calls, seconds=0.0) >= 0
    assert made.count(0) == made.count(1) >= 6
    held = hold(CpuClock(), calls, seconds=0.0)
    assert held.held_seconds > 0
    assert held.load is None


def test_what_nvidia_smi_says() -> None:
    load = card.parse("1980, 3201, 690.1, 55\n1960, 3201, 700.0, 57\n1700, 3201, [N/A], 40\n19")
    assert load == card.Load(1970.0, 3201.0, 695.05, 56.0)
    assert str(load) == "SM 1970 MHz, memory 3201 MHz, 695 W, 56 C"
    assert card.parse("[N/A], [N/A], [N/A], [N/A]\n") is None


def test_a_text_has_the_tokens_it_was_made_of(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    save_tokenizer(TINY_BERT, tmp_path)
    token_ids = batch_of(TINY_BERT, [60]).token_ids.tolist()
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode(text_of(token_ids)).ids == token_ids


def test_mixed_lengths_are_packed_whole_and_in_order() -> None:
    texts = mixed.sequences_of(TINY_BERT, num=50)
    batches = mixed.packed(texts, max_num_tokens=128)
    assert [token for batch in batches for token in batch.token_ids.tolist()] == [one for text in texts for one in text]
    assert sum(batch.num_seqs for batch in batches) == 50
    assert all(batch.num_tokens <= 128 for batch in batches)
    assert texts == mixed.sequences_of(TINY_BERT, num=50)


class OneByOne:
    """An engine of no rows that answers in the order of submission."""

    def __init__(self, seconds: float) -> None:
        self.limits = SimpleNamespace(depth=2)
        self.submitted: list[Batch] = []
        self.most_bulk = 0
        self._seconds = seconds
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._num_collected = 0

    def submit(self, batch: Batch) -> int:
        self.submitted.append(batch)
        inside = self.submitted[self._num_collected :]
        self.most_bulk = max(self.most_bulk, sum(not one.is_urgent for one in inside))
        self._waiting.put(len(self.submitted))
        return len(self.submitted)

    def collect(self) -> tuple[int, dict[OutputKind, object]]:
        ticket = self._waiting.get(timeout=10)
        time.sleep(self._seconds)
        self._num_collected = ticket
        return ticket, {}


def test_queries_come_by_the_clock_while_bulk_fills_the_engine() -> None:
    bulk, query = batch_of(TINY_BERT, [8, 8]), dataclasses.replace(batch_of(TINY_BERT, [4]), is_urgent=True)
    traffic, engine = beside.Traffic(bulk, query, seconds=0.5), OneByOne(0.002)
    assert beside._run(cast(Engine, engine), traffic) >= 0.5
    assert traffic.done.keys() >= traffic.due.keys()
    assert len(engine.submitted) == len(traffic.done) == traffic.num_bulk + len(traffic.due)
    assert 5 <= len(traffic.due) <= 60  # 50 a second, by chance
    assert traffic.num_bulk > len(traffic.due)
    assert engine.most_bulk == engine.limits.depth
    assert all(traffic.done[ticket] > due for ticket, due in traffic.due.items())


def test_batches_are_sealed_as_the_server_seals_them() -> None:
    limits = EngineLimits(max_num_tokens=4096, max_num_seqs=8, max_seqlen=512, token_buckets=(256, 512, 2048, 4096))
    sealed = [beside.sealed(limits, rate, 0.01) for rate in (1e3, 80_000.0, 1e9)]
    assert sealed == [256, 512, 4096]


def test_a_warm_up_waits_for_what_each_batch_has_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(mixed, "alone", lambda _, batch: done.append(batch.num_tokens))
    monkeypatch.setattr(mixed, "on_recorder", lambda _: done.append("recorded"))
    mixed.warm_up(cast(Engine, None), [batch_of(TINY_BERT, [8]), batch_of(TINY_BERT, [9, 3])])
    assert done == [8, "recorded", 12, "recorded"]


def test_kernels_are_measured_at_the_widths_of_the_models() -> None:
    full = cases(is_tiny=False)
    assert len({(case.name, case.width, case.is_quantized) for case in full}) == len(full)
    assert {case.name for case in cases(is_tiny=True)} <= {case.name for case in full}


def test_wheels_are_unpacked_and_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with zipfile.ZipFile(tmp_path / "thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing/__init__.py", "number = 7\n")
    with unpacked(str(tmp_path), tmp_path / "unpacked") as path:
        asked = "import json, thing; print(json.dumps(thing.number))"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        ran = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, check=True)
    assert json.loads(ran.stdout) == 7
    with unpacked(None, tmp_path / "nothing") as path:
        assert path == []


def test_a_folder_without_wheels_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no \*\.whl"), unpacked(str(tmp_path), tmp_path / "x"):
        pass
