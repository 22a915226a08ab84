"""benchmarks.gpu on a CPU at toy sizes: every part runs, goes on where it was stopped, and claims nothing.

What the numbers are is never asserted; what they are computed from is.
"""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
import torch

from benchmarks.gpu import card, mixed, report
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import CpuClock, hold, median_seconds
from benchmarks.gpu.kernel_cases import cases
from benchmarks.gpu.random_models import batch_of, save_tokenizer, text_of
from benchmarks.gpu.rows import FAILED, Rows
from benchmarks.gpu.shapes import TINY_BERT
from benchmarks.gpu.targets import SENTENCE_TRANSFORMERS
from engine.types import Engine
from tests.benchmarks.bare_python import bare_python
from tests.server_e2e.running import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def run(target: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """By make, in an environment that has what a GPU's machine has, and no more."""
    python = bare_python(out.with_name("bare"))
    given = (f"OUT={out}", f"GPU_PYTHON={python}", "ARGS=--device cpu --tiny", *words)
    return subprocess.run(["make", target, *given], cwd=ROOT, capture_output=True, text=True, check=False)


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
@pytest.mark.timeout(1800)
def test_a_first_gpu_is_measured_from_end_to_end_and_labelled(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run("first-gpu", out)
    assert ran.returncode == 0, ran.stderr
    assert len(list(out.iterdir())) <= 6
    found = read(out)
    assert {row["kind"] for row in found} == {
        *("import", "machine", "tests", "ceiling", "gemm", "attention", "probe", "probe of products"),
        *("model", "profile", "latency", "padding", "beside bulk", "shared prefix", "cosine", "mixed", "ratio"),
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
@pytest.mark.parametrize(("part", "kinds"), [("kernels", {"kernel"}), ("heads", {"heads", "ratio"})])
def test_a_part_alone(part: str, kinds: set[str], tmp_path: Path) -> None:
    ran = run("bench-gpu", tmp_path / "out", f"PARTS={part}")
    assert ran.returncode == 0, ran.stderr
    found = read(tmp_path / "out")
    assert {row["kind"] for row in found} == {"import", "machine", *kinds}
    assert not [row for row in found if row["metric"] == FAILED]
    check_figures(found)


def check_figures(found: list[dict[str, str]]) -> None:
    """Those that are right or wrong whatever the machine."""
    for row in found:
        value = float(row["value"])
        if row["metric"] == "error":
            assert value < (0.05 if row["precision"] == "fp8 out" else 0.01), row
        if row["kind"] == "cosine" and row["metric"] in ("lowest", "median"):
            assert value > (0.98 if "fp8" in row["precision"] else 0.99999), row
        if row["metric"] == "lowest cosine":
            assert value > 0.99999, row
        if row["metric"] == "changed rows":
            assert value == 0, row


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


def test_clocks_are_those_of_a_stretch_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line counts when it is said; in a pipe it would wait for others."""
    os.mkfifo(tmp_path / "said")
    nvidia_smi = tmp_path / "nvidia-smi"
    repeat = f"for line in open('{tmp_path}/said'): print(line, end='')"
    nvidia_smi.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{repeat}"\n')
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch = card.Watch(torch.device("cuda:0"))
    with Path(tmp_path, "said").open("w", buffering=1) as said:
        for clock in (1000.0, 1400.0):
            began = time.perf_counter()
            said.write(f"{clock}, 2619, 600.0, 50\n")
            while (load := watch.since(began)) is None:
                assert time.perf_counter() < began + PATIENCE
            assert load.sm_mhz == clock


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
