"""benchmarks.gpu on a CPU at toy sizes: every part runs, goes on where it was stopped, and claims nothing.

What the numbers are is never asserted; what they are computed from is.
"""

import csv
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as main
from benchmarks.gpu import cold_start, machine, mixed, plot, smi, written
from benchmarks.gpu.bench import Bench, BrokenDevice, TimeUp
from benchmarks.gpu.clock import CpuClock, hold, median_seconds
from benchmarks.gpu.kernel_cases import cases
from benchmarks.gpu.products import BF16, FP8_BLOCK, FP8_ROW, FP8_TENSOR, Product, product_call
from benchmarks.gpu.random_models import batch_of, build, save_tokenizer, text_of
from benchmarks.gpu.rows import FAILED, Figure, Key, Rows
from benchmarks.gpu.server import unpacked
from benchmarks.gpu.shapes import BERT_BASE, BGE_M3, MINILM, QWEN3_06B, QWEN3_4B, QWEN3_8B, TINY, TINY_BERT, Shape
from benchmarks.gpu.tables import short, tables, target_table
from benchmarks.gpu.targets import BF16 as TARGET_BF16
from benchmarks.gpu.targets import CACHED, FP8, NOTHING_CACHED, TARGETS, Target
from benchmarks.gpu.throughput import SEQLENS
from tests.tiers import full

ROOT = Path(__file__).resolve().parents[2]
KEY = Key("gemm", "toy", "bf16", "M=1")


def run_part(part: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", part, "--device", "cpu", "--tiny", "--out", str(out), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


def read(out: Path) -> list[dict[str, str]]:
    (file,) = out.glob("*.csv")
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "rows.csv", machine="this one")


def bench_of(rows: Rows, *, seconds: float = 1000.0) -> Bench:
    return Bench(CpuClock(), rows, True, time.monotonic() + seconds)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        ("ceilings", {"ceiling", "gemm"}),
        *full(
            ("kernels", {"attention", "kernel"}),
            ("models", {"ceiling", "cosine", "model", "latency", "padding", "mixed", "cold start"}),
            ("server", {"server"}),
        ),
    ],
)
def test_a_part_runs_whole_and_is_labelled(part: str, kinds: set[str], tmp_path: Path) -> None:
    ran = run_part(part, tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = read(tmp_path)
    assert {row["kind"] for row in found} == kinds
    assert [row for row in found if row["metric"] == FAILED] == []
    assert {row["machine"] for row in found} == {machine.TOY}
    (csv_file,) = tmp_path.glob("*.csv")
    assert "not-a-measurement" in csv_file.name
    report = csv_file.with_suffix(".md").read_text()
    assert machine.TOY.upper() in report
    assert "reached |" not in report.lower()
    check_figures(found)


def check_figures(found: list[dict[str, str]]) -> None:
    """Those that are right or wrong whatever the machine."""
    for row in found:
        value = float(row["value"])
        if row["metric"] == "error":
            assert value < (0.05 if row["precision"] == "fp8 out" else 0.01), row
        if row["kind"] == "cosine":
            assert value > (0.98 if "fp8" in row["precision"] else 0.99999), row
        if row["metric"] in ("changed rows", "bulk failed", "interactive failed"):
            assert value == 0, row
        if (row["kind"], row["metric"], row["precision"]) == ("cold start", "to the first embedding", FP8):
            assert ("quantized weights taken from" in row["note"]) == (row["shape"] == CACHED), row


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_part_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    stopped = run_part("ceilings", tmp_path, "--seconds", "0")
    assert stopped.returncode == 0
    assert "the same command goes on from here" in stopped.stdout
    assert not list(tmp_path.glob("*.csv"))
    assert run_part("ceilings", tmp_path).returncode == 0
    whole = read(tmp_path)
    (file,) = tmp_path.glob("*.csv")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]) + "toy,1,gemm,unfini")
    assert run_part("ceilings", tmp_path).returncode == 0
    again = read(tmp_path)
    keys = [(row["subject"], row["precision"], row["shape"], row["metric"]) for row in whole]
    assert sorted((row["subject"], row["precision"], row["shape"], row["metric"]) for row in again) == sorted(keys)
    assert {row["run"] for row in again} == {"1", "2"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["ceilings", "kernels", "models"])
def test_a_part_runs_whole_on_a_gpu(part: str, tmp_path: Path) -> None:
    ran = run_part(part, tmp_path, "--device", "cuda:0")
    assert ran.returncode == 0, ran.stderr
    found = read(tmp_path)
    # whether cuDNN takes a toy's heads is its own affair
    assert [row for row in found if row["metric"] == FAILED and row["subject"] != "cuDNN"] == []
    assert {row["machine"] for row in found} == {machine.TOY}


def test_another_process_takes_over_what_is_left(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not begin afresh, nor get more time."""
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: started.append(words))
    monkeypatch.setattr(sys, "argv", ["x", "kernels", "--fresh", "--until=7.0"])
    bench = bench_of(rows)
    main.begin_again(bench)
    assert started == [[sys.executable, "-m", "benchmarks.gpu", "kernels", "--fresh", f"--until={bench.deadline}"]]


@pytest.mark.full
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "kernels", "--device", "cpu", "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "--device cpu is for --tiny alone" in ran.stderr


def test_no_report_of_toy_sizes_lies_among_the_results() -> None:
    assert not list((ROOT / "benchmarks/results").glob("*not-a-measurement*"))


# --- operations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "millions", "gigaflop"),
    [
        (MINILM, 10.6, {128: 0.022, 512: 0.026}),
        (BERT_BASE, 84.9, {128: 0.175, 512: 0.189}),
        (BGE_M3, 302, {128: 0.617, 512: 0.654, 2048: 0.805, 8192: 1.409}),
        (QWEN3_06B, 440, {128: 0.895, 512: 0.940, 2048: 1.116, 8192: 1.820}),
        (QWEN3_4B, 3633, {128: 7.304, 512: 7.418, 2048: 7.871, 8192: 9.683}),
        (QWEN3_8B, 6946, {128: 13.93, 512: 14.04, 2048: 14.50, 8192: 16.31}),
    ],
    ids=lambda value: value.name if isinstance(value, Shape) else "",
)
def test_operations_of_a_token(shape: Shape, millions: float, gigaflop: dict[int, float]) -> None:
    """Computed by hand from the models' configurations."""
    assert shape.num_linear_parameters / 1e6 == pytest.approx(millions, rel=2e-3)
    for seqlen, expected in gigaflop.items():
        assert shape.flop_per_token(seqlen) / 1e9 == pytest.approx(expected, rel=1e-3, abs=6e-4)


@pytest.mark.parametrize("shape", TINY, ids=lambda shape: shape.name)
def test_a_shape_is_that_of_the_model_made_of_it(shape: Shape) -> None:
    module = build(shape, torch.device("cpu")).module
    products = sum(parameter.numel() for name, parameter in module.named_parameters() if _is_product(name, parameter))
    assert products == shape.num_linear_parameters


def _is_product(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 2 and "embed" not in name and "pooler" not in name


def test_pruning_saves_what_one_layer_does_for_tokens_that_nobody_asked_for() -> None:
    assert MINILM.pruned_share(128) == 1.0
    assert 0.97 < QWEN3_8B.pruned_share(128) < 0.98
    assert 0.95 < BGE_M3.pruned_share(512) < 0.975
    assert QWEN3_06B.pruned_share(1) == 1.0


@pytest.mark.parametrize("precision", [BF16, FP8_ROW, FP8_TENSOR])
def test_a_product_is_what_it_says(precision: str) -> None:
    size = Product(num_rows=32, num_columns=48, depth=256)
    got = product_call(size, precision, torch.device("cpu"), 3)()
    expected = product_call(size, BF16, torch.device("cpu"), 3)()
    assert isinstance(got, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert got.shape == (32, 48)
    assert (got.float() - expected.float()).norm() / expected.float().norm() < 0.06
    assert size.flop == 2 * 32 * 48 * 256


def test_scales_of_blocks_have_their_shapes() -> None:
    """No CPU multiplies them, so shapes are all that can be checked here."""
    call = product_call(Product(num_rows=256, num_columns=128, depth=384), FP8_BLOCK, torch.device("cpu"), 0)
    rows, weight, row_scales, weight_scales = call.args  # type: ignore[attr-defined]
    assert (row_scales.shape, row_scales.stride()) == ((256, 3), (1, 256))
    assert weight_scales.shape == (3, 1)
    assert (rows.shape, weight.shape) == ((256, 384), (384, 128))


# --- rows, tables, targets --------------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were_written(rows: Rows) -> None:
    figures = [Figure("rate", 1 / 3, "TFLOP/s", 'a "note", with a comma'), Figure("time", 2.0, "us")]
    rows.add(KEY, figures)
    again = Rows(rows.path, machine="this one")
    assert [row.figure for row in again] == figures
    assert KEY in again
    assert again.value(KEY, "rate") == 1 / 3
    assert (rows.run, again.run) == (1, 2)
    assert again.value(KEY, "rate", run=2) is None
    assert KEY not in Rows(rows.path, machine="this one", fresh=True)


def test_a_failure_is_a_row_and_the_others_go_on(rows: Rows) -> None:
    bench = bench_of(rows)

    def fails() -> Iterator[Figure]:
        yield Figure("rate", 1.0, "")
        raise RuntimeError("no\nsuch kernel")

    bench.measure(KEY, fails)
    (row,) = rows
    assert (row.figure.metric, row.figure.note) == (FAILED, "RuntimeError: no such kernel")
    bench.measure(KEY, lambda: pytest.fail("it was measured again"))
    assert "FAILED: RuntimeError: no such kernel" in "\n".join(tables(rows)[0].markdown())


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
        Target("other", "a", "bf16", "", "share", 0.5),
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


def test_a_start_that_was_begun_is_measured_from_its_first_run_on(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later one finds nothing of what an earlier process cached."""
    bf16 = [Key("cold start", TINY_BERT.name, TARGET_BF16, name) for name in (NOTHING_CACHED, CACHED)]
    fp8 = [Key("cold start", TINY_BERT.name, FP8, name) for name in (NOTHING_CACHED, CACHED)]
    for key in (*bf16, fp8[0]):
        rows.add(key, [Figure("to the first embedding", 1.0, "s")])
    started: list[str] = []

    def start(device: str, model: Path, way: str, caches: Path) -> list[Figure]:
        started.append(way)
        return [Figure("to the first embedding", 2.0, "s")]

    monkeypatch.setattr(cold_start, "_start", start)
    cold_start.run(bench_of(rows))
    assert started == [FP8, FP8]
    assert [rows.value(key, "to the first embedding") for key in (*bf16, *fp8)] == [1.0, 1.0, 2.0, 2.0]


def test_a_start_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "_PATIENCE", 0.0)
    with pytest.raises(RuntimeError, match="the process ended with -9"):
        list(cold_start._start("cpu", tmp_path, FP8, tmp_path))


def test_a_failure_meets_no_target() -> None:
    assert not any(target.is_met_by(float("nan")) for target in TARGETS)


def test_targets_name_what_is_measured() -> None:
    shapes = {shape.name for shape in (QWEN3_06B, QWEN3_8B, BGE_M3, MINILM)}
    assert {target.subject for target in TARGETS} == shapes
    assert {target.kind for target in TARGETS} == {"model", "latency", "mixed", "padding", "cold start", "server"}
    starts = {(target.subject, target.shape): target.bound for target in TARGETS if target.kind == "cold start"}
    assert starts == {("Qwen3-0.6B", NOTHING_CACHED): 10.0, ("Qwen3-8B", CACHED): 20.0}  # seconds
    of_models = [target for target in TARGETS if target.kind == "model"]
    assert {int(target.shape.removeprefix("S=")) for target in of_models} <= set(SEQLENS)
    shares = {(one.subject, one.precision, one.shape): one.bound for one in of_models if one.metric == "share"}
    assert len(shares) == 12
    assert shares[("Qwen3-8B", "fused fp8", "S=512")] == 0.63


def test_the_report_says_what_it_was_run_with_and_no_folder(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.add(KEY, [Figure("rate", 1.0, "TFLOP/s")])
    monkeypatch.setattr(sys, "argv", ["x", "ceilings", "--out", "/home/somebody/there"])
    written.finish(bench_of(rows), "ceilings", stopped="")
    report = rows.path.with_suffix(".md").read_text()
    assert "`python -m benchmarks.gpu ceilings --out there`" in report
    assert "somebody" not in report
    assert re.search(r"torch \d", report)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.9987654, "0.99877"), (0.528, "0.528"), (1234.5, "1,234"), (float("nan"), "")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.full
def test_shares_are_drawn(rows: Rows) -> None:
    pytest.importorskip("matplotlib")
    assert plot.draw(rows, "models", is_tiny=False) is None
    rows.add(Key("model", "Qwen3-8B", "fused fp8", "S=512"), [Figure("share", 0.6, "")])
    image = plot.draw(rows, "models", is_tiny=False)
    assert image is not None
    assert image.read_bytes().startswith(b"\x89PNG")
    assert plot.draw(rows, "models", is_tiny=True) is None


# --- clocks, texts, wheels --------------------------------------------------------------------------------------------


def test_every_call_of_a_round_is_made(rows: Rows) -> None:
    made: list[int] = []
    calls = [lambda: made.append(0), lambda: made.append(1)]
    assert median_seconds(CpuClock(), calls, seconds=0.0) >= 0
    assert made.count(0) == made.count(1) >= 6
    held = hold(CpuClock(), calls, seconds=0.0)
    assert held.held_seconds > 0
    assert held.load is None


def test_what_nvidia_smi_says() -> None:
    load = smi.parse("1980, 3201, 690.1, 55\n1960, 3201, 700.0, 57\n1700, 3201, [N/A], 40\n19")
    assert load == smi.Load(1970.0, 3201.0, 695.05, 56.0)
    assert str(load) == "SM 1970 MHz, memory 3201 MHz, 695 W, 56 C"
    assert smi.parse("[N/A], [N/A], [N/A], [N/A]\n") is None


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
