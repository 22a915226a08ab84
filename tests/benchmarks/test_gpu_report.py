"""Rows, tables and targets of the GPU benchmark."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu import report, throughput
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.attention_cases import best
from benchmarks.gpu.bench import Bench, BrokenDevice, TimeUp
from benchmarks.gpu.clock import CpuClock
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.rows import FAILED, Figure, Key, Rows
from benchmarks.gpu.shapes import BERT_BASE, BGE_M3, LLAMA_8B, MINILM, QWEN3_06B, QWEN3_8B, TINY_BERT
from benchmarks.gpu.tables import short, tables, target_table
from benchmarks.gpu.targets import BF16 as TARGET_BF16
from benchmarks.gpu.targets import FP8, TARGETS, Target
from benchmarks.gpu.throughput import RATIOS, SEQLENS, SMALL

KEY = Key("gemm", "toy", "bf16", "M=1")


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "rows.csv", machine="this one")


def bench_of(rows: Rows, *, seconds: float = 1000.0) -> Bench:
    return Bench(CpuClock(), rows, True, time.monotonic() + seconds)


def test_rows_come_back_as_they_were_written(rows: Rows) -> None:
    figures = [Figure("rate", 1 / 3, "TFLOP/s", 'a "note", with a comma'), Figure("time", 2.0, "us")]
    rows.add(KEY, figures)
    again = Rows(rows.path, machine="this one")
    assert [row.figure for row in again] == figures
    assert KEY in again
    assert again.value(KEY, "rate") == 1 / 3
    assert (rows.run, again.run) == (1, 2)
    assert again.value(KEY, "rate", run=2) is None
    assert KEY not in Rows(rows.path, machine="another")


def test_a_failure_is_a_row_beside_what_was_measured_and_the_others_go_on(rows: Rows) -> None:
    bench, key = bench_of(rows), Key("model", "toy", "bf16", "S=8")

    def fails() -> Iterator[Figure]:
        yield Figure("rate", 1.0, "")
        assert Rows(rows.path, machine="this one").value(key, "rate") == 1.0  # in the file already
        raise RuntimeError("no\nsuch graph")

    bench.measure(key, fails)
    rate, failure = rows
    assert rate.figure.value == 1.0
    assert (failure.figure.metric, failure.figure.note) == (FAILED, "RuntimeError: no such graph")
    bench.measure(key, lambda: pytest.fail("it was measured again"))
    assert "FAILED: RuntimeError: no such graph" in "\n".join(tables(rows)[0].markdown())


def test_without_a_graph_a_model_is_called(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    bench = bench_of(rows)
    monkeypatch.setattr(bench.clock, "graph", refused)
    key = Key("model", TINY_BERT.name, TARGET_BF16, "S=8")
    throughput.run(bench, Subject(TINY_BERT, TARGET_BF16, bench.clock.device), 8)
    assert rows.value(key, "rate") is not None
    assert "called, without a graph: RuntimeError: operation not permitted" in "".join(row.figure.note for row in rows)


def test_what_ended_the_process_is_tried_once_more_and_then_left_out(rows: Rows) -> None:
    def killed() -> Iterator[Figure]:
        yield Figure("rate", 1.0, "")
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            bench_of(Rows(rows.path, machine="this one")).measure(KEY, killed)
    with rows.path.open("a") as file:
        file.write("this one,3,gemm,unfini")
    again = Rows(rows.path, machine="this one")
    assert KEY not in again
    bench_of(again).measure(KEY, lambda: pytest.fail("it was begun a third time"))
    assert list(again)[-1].figure.note == "the process ended in it, 2 times"
    assert KEY in Rows(rows.path, machine="this one")


def test_products_stand_side_by_side_and_refusals_are_named(rows: Rows) -> None:
    rows.add(Key("gemm", "8B o", "bf16", "M=1"), [Figure("rate", 700.0, "TFLOP/s"), Figure("time", 1.0, "us")])
    rows.add(Key("gemm", "8B o", "fp8 tensor", "M=1"), [Figure("rate", 1300.0, "TFLOP/s")])
    rows.fail(Key("gemm", "8B o", "fp8 1x128", "M=1"), "RuntimeError: NOT_SUPPORTED")
    (line,) = tables(rows)[0].rows
    assert line == {
        "product": "8B o",
        "size": "M=1",
        "bf16 TFLOP/s": "700",
        "fp8 tensor TFLOP/s": "1,300",
        "fp8 1x128 TFLOP/s": "refused",
        "notes": "fp8 1x128: RuntimeError: NOT_SUPPORTED",
    }


def test_a_lost_device_ends_the_process_after_its_row(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(rows)

    def lost() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(bench.clock, "synchronize", lost)
    with pytest.raises(BrokenDevice, match="illegal memory access"):
        bench.measure(KEY, lambda: [Figure("rate", 1.0, "")])
    assert KEY in rows


def test_when_time_is_up_nothing_is_begun(rows: Rows) -> None:
    with pytest.raises(TimeUp):
        bench_of(rows, seconds=-1.0).measure(KEY, lambda: pytest.fail("it was begun"))
    assert list(rows) == []


def test_a_target_is_reached_missed_or_not_measured(rows: Rows) -> None:
    targets = [
        Target("gemm", "a", "bf16", "", "share", 0.5),
        Target("gemm", "b", "bf16", "", "p50", 2.0, False, "ms"),
        Target("gemm", "c", "bf16", "", "share", 0.5),
    ]
    rows.add(Key("gemm", "a", "bf16"), [Figure("share", 0.51, "")])
    rows.add(Key("gemm", "b", "bf16"), [Figure("p50", 2.5, "ms")])
    lines = target_table(rows, is_tiny=False, targets=targets).rows
    assert [(line["measured"], line[""]) for line in lines] == [
        ("0.51", "reached"),
        ("2.5 ms", "NOT REACHED"),
        ("not measured", ""),
    ]
    toy = target_table(rows, is_tiny=True, targets=targets).rows
    assert {line["measured"] for line in toy} == {"not measured"}


def test_a_failure_meets_no_target() -> None:
    assert not any(target.is_met_by(float("nan")) for target in TARGETS)


def test_targets_name_what_is_measured() -> None:
    shapes = {shape.name for shape in (QWEN3_06B, QWEN3_8B, BGE_M3, BERT_BASE, MINILM, LLAMA_8B)}
    assert {target.subject for target in TARGETS} == shapes
    assert {target.kind for target in TARGETS} == {
        "model",
        "ratio",
        "latency",
        "padding",
        "cold start",
        "server",
        "heads",
    }
    of_models = [target for target in TARGETS if target.kind == "model"]
    assert {int(target.shape.removeprefix("S=")) for target in of_models} <= set(SEQLENS)
    assert {target.metric for target in of_models} == {"share", f"share of best at T={SMALL}"}
    ratios = [target for target in TARGETS if target.kind == "ratio"]
    assert {tuple(target.precision.split(" / ")) for target in ratios} <= set(RATIOS)
    shares = {(one.subject, one.precision, one.shape): one.bound for one in of_models if one.metric == "share"}
    assert len(shares) == 6
    assert shares[("Qwen3-8B", "fused fp8", "S=512")] == 0.88


def test_the_fastest_sizes_of_attention_are_those_that_are_right_everywhere(rows: Rows) -> None:
    speeds = {  # at 512 and 8,192 tokens, and the error
        "Sizes(64, 8, 3)": (200.0, 400.0, 0.002),
        "Sizes(32, 8, 4, 128)": (220.0, 484.0, 0.002),
        "Sizes(128, 8, 2)": (210.0, 900.0, 0.5),  # wrong
        "Sizes(64, 8, 4)": (900.0, None, 0.002),  # not measured at the longer one
    }
    for launch, (short_rate, long_rate, error) in speeds.items():
        for shape, rate in (("S=512", short_rate), ("S=8192", long_rate)):
            if rate is not None:
                key = Key("attention", f"tiles {launch}", "bf16", f"D=128 N=32 H=8 {shape} causal")
                rows.add(key, [Figure("error", error, ""), Figure("rate in a graph", rate, "TFLOP/s")])
    rows.add(Key("attention", "cuDNN", "bf16", "D=64 N=16"), [Figure("rate in a graph", 500.0, "TFLOP/s")])
    (line,) = best(rows)
    assert line == "`SIZES[9][128][128] = Sizes(32, 8, 4, 128)`: 1.15 times Sizes(64, 8, 3), over 2 of 2 cases"
    report.finish(rows, ())
    assert f"- {line}" in rows.path.with_suffix(".md").read_text()


def test_the_report_says_what_it_was_run_with_and_no_folder(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.add(KEY, [Figure("rate", 1.0, "TFLOP/s")])
    rows.add(Key("model", "Qwen3-8B", FP8, "S=512"), [Figure("share", 0.9, "")])
    described = [Figure("run", 1.0, "", "a card of 141 GiB"), Figure("versions", 1.0, "", report.versions())]
    rows.add(Key("machine", "models"), described)
    monkeypatch.setattr(sys, "argv", ["x", "ceilings", "--out", "/home/somebody/there"])
    report.finish(rows, ["kernels: its process ended with -11"])
    text = rows.path.with_suffix(".md").read_text()
    assert "ceilings --out …/there`" in text
    assert "somebody" not in text
    assert "- Machine: a card of 141 GiB" in text
    assert "- Not well: kernels: its process ended with -11" in text
    assert "| model Qwen3-8B fused fp8 S=512: share | at least 0.88 | 0.9 | reached |" in text
    assert re.search(r"torch \d", text)


def test_a_report_is_made_of_the_rows_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs stay apart: a share is held against the ceiling of its own."""
    files = [tmp_path / "first.csv", tmp_path / "second.csv"]
    for file, rate in zip(files, (1.0, 2.0), strict=True):
        earlier = Rows(file, machine="a card")
        monkeypatch.setattr(time, "time", lambda: 1_795_744_590.0)
        noted = Figure("run", 1.0, "", "a card of 80 GiB"), Figure("not there", 1.0, "", "the server")
        earlier.add(Key("machine", "models"), noted)
        earlier.add(KEY, [Figure("rate", rate, "TFLOP/s")])
    command = ["x", "report", "--resume", *map(str, files), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", command)
    main()
    (text,) = Path(tmp_path, "out").glob("gpu_a-card_2026-11-2?.md")
    assert "a card of 80 GiB" in text.read_text()
    joined = Rows(text.with_suffix(".csv"), machine="a card")
    assert [joined.value(KEY, "rate", run=run) for run in (1, 2)] == [1.0, 2.0]
    assert "- Versions: not noted" in text.read_text()
    assert "- Not there: the server" in text.read_text()


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.9987654, "0.99877"), (0.528, "0.528"), (1234.5, "1,234"), (float("nan"), "")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text
