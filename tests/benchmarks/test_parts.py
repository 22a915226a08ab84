"""The parts of the benchmarks that can be wrong without anybody seeing it in a table."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import host_path
from benchmarks.engines import fma_peak
from benchmarks.engines.__main__ import gflop
from benchmarks.host_path import MAX_TRIES, OTHER, THIS, Pair, Run, compare, quiet_pair, write_pairs
from benchmarks.measuring import load, processes, report
from benchmarks.measuring.load import Measured
from benchmarks.measuring.servers import Recipe, ServerFailed, running
from benchmarks.measuring.texts import Corpus, Prose
from benchmarks.peers.figures import (
    LOWEST_COSINE,
    MEMORY,
    Figures,
    median,
    write_extremes,
    write_side_by_side,
    write_summary,
)
from embedline import __version__
from embedline.bench.load import Load, Phase, Summary
from tests.server_e2e.expected import minilm

TOKENIZER = minilm() / "tokenizer.json"


@pytest.fixture(scope="module")
def prose() -> Prose:
    return Prose(TOKENIZER)


def test_mixed_texts_are_real_of_log_normal_lengths_and_all_different(prose: Prose) -> None:
    corpus = prose.mixed(1000)
    lengths = sorted(map(len, corpus.token_ids))
    assert len(set(corpus.texts)) == 1000
    assert lengths[0] >= 4
    assert lengths[-1] <= 250
    assert 37 <= lengths[500] <= 43
    assert 80 <= lengths[900] <= 110
    assert "def " not in " ".join(corpus.texts[:100])


def test_the_same_texts_come_again() -> None:
    assert Prose(TOKENIZER).mixed(20) == Prose(TOKENIZER).mixed(20)


@pytest.mark.full
@pytest.mark.parametrize("num_tokens", [10, 16, 256])
def test_uniform_texts_have_so_many_tokens(prose: Prose, num_tokens: int) -> None:
    lengths = list(map(len, prose.uniform("some", 50, num_tokens=num_tokens).token_ids))
    assert sum(length == num_tokens for length in lengths) >= 45
    assert all(abs(length - num_tokens) <= 2 for length in lengths)


def test_operations_of_minilm() -> None:
    """21.3 MFLOP a token in the linear layers, and 9.2 kFLOP for each token that a token looks at."""
    config = json.loads((minilm() / "config.json").read_text())
    short, long = (1e9 * gflop(config, Corpus("one", [""], [[0] * num])) / num for num in (1, 101))
    assert short == pytest.approx(21.24e6, rel=1e-3)
    assert long - short == pytest.approx(100 * 4 * 384 * 6)


def test_a_tree_is_a_process_and_what_came_of_it() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        assert len(processes.tree(process.pid)) == 2
        assert processes.tree_cpu_seconds(process.pid) > 0
        assert processes.tree_pss_mb(process.pid) > 1
        assert processes.tree_peak_rss_mb(process.pid) > 1
        process.stdin.write(b"\n")
    assert processes.tree_cpu_seconds(process.pid) == 0.0


def test_a_server_that_ends_is_one_line(tmp_path: Path) -> None:
    recipe = Recipe("it", (sys.executable, "-c", "import sys; sys.exit('port {port} is not for me')"))
    with running(recipe, cache=tmp_path) as server, pytest.raises(ServerFailed, match=r"is not for me$"):
        server.wait_for_answer("text", patience=60)


def test_a_server_that_hangs_is_one_line(tmp_path: Path) -> None:
    recipe = Recipe("it", (sys.executable, "-c", "import threading; threading.Event().wait()"))
    with running(recipe, cache=tmp_path) as server, pytest.raises(ServerFailed, match="did not answer within 0 s"):
        server.wait_for_answer("text", patience=0.1)
    assert server.process.returncode is not None


def summary_of(texts_per_second: float) -> Summary:
    return Summary(
        seconds=1.0,
        num_requests=1,
        num_texts=1,
        requests_per_second=texts_per_second,
        texts_per_second=texts_per_second,
        tokens_per_second=None,
        failures={},
        latencies_ms=[1000 / texts_per_second],
        lag_p99_ms=None,
    )


def figures(label: str, server: str, texts_per_second: float, *, case: str = "load") -> Figures:
    measured = Measured(summary=summary_of(texts_per_second), cpu_seconds=0.01, foreign_share=0.0)
    return Figures(label, case, server, 50.0, measured)


def test_medians_are_over_the_rounds_and_ratios_are_ours_to_theirs() -> None:
    runs = [figures(str(number), "ours", rate) for number, rate in enumerate((90.0, 100.0, 500.0))]
    runs += [figures("0", "theirs", 50.0)]
    assert median(runs, "load", "ours", lambda one: one.texts_per_second) == 100.0
    written = report.Report("what", "title")
    write_summary(written, runs, ours="ours")
    ours, theirs = written._tables[-1].rows
    assert ours["lowest to highest texts/s"] == "90.0 to 500.0"
    assert theirs["ours: texts/s"] == "2.00 x"
    assert theirs["ours: p99 ms"] == "0.50 x"


def test_the_worst_ratio_is_shown_beside_the_best() -> None:
    rates = {"short, 64 x 1": (100.0, 40.0), "lone query": (10.0, 12.5), "mixed, 8 x 32": (60.0, 60.0)}
    runs = [
        figures("0", server, rate, case=case)
        for case, pair in rates.items()
        for server, rate in zip(("ours", "theirs"), pair, strict=True)
    ]
    written = report.Report("what", "title")
    write_extremes(written, runs, ours="ours")
    (row,) = written._tables[-1].rows
    assert (row["at best"], row["at worst"]) == ("2.50 x (short, 64 x 1, texts/s)", "0.80 x (lone query, p50 ms)")


def test_side_by_side_names_the_server_that_ours_does_worst_against() -> None:
    runs = [figures("0", name, rate) for name, rate in (("ours", 100.0), ("a", 40.0), ("b", 125.0), ("ours int8", 1e3))]
    facts = {LOWEST_COSINE: {"ours": 0.99997, "a": 1.0}, MEMORY: {"ours": 300.0, "a": 150.0}}
    written = report.Report("what", "title")
    write_side_by_side(written, runs, facts, ours="ours")
    rates, cosines, memory = written._tables[-1].rows
    assert list(rates.values()) == [
        "load, texts/s",
        "100",
        "40 (2.50 x)",
        "125 (0.80 x)",
        "1000 (0.10 x)",
        "0.80 x (b)",
    ]
    assert list(cosines.values()) == ["lowest cosine", "0.999970", "1.000000"]
    assert list(memory.values()) == [MEMORY, "300", "150 (0.50 x)", "0.50 x (a)"]


def test_a_report_names_machine_versions_and_command_and_no_kernel_of_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr("platform.release", lambda: "6.1.2-built-by-somebody")
    monkeypatch.setattr("sys.argv", ["/home/somebody/benchmarks/what.py", "--infinity", "/home/somebody/infinity"])
    written = report.Report("what", "A title")
    written.row({"a": 1})
    written.table("Second")
    written.row({"b": 2, "c": 3}, {"b": 2.25})
    written.note("Not shown: much.")
    written.finish(write=True)
    rows, path = sorted(tmp_path.iterdir())
    assert json.loads(rows.read_text())["tables"] == {"": [{"a": 1}], "Second": [{"b": 2.25}]}
    text = path.read_text()
    assert all(part in text for part in ("# A title", "- Command: `", "numpy ", "## Second", "| 2 | 3 |", "Not shown"))
    assert "Linux 6.1.2\n" in text
    assert f"- Embedline: {__version__}, " in text
    assert "- Command: `python -m benchmarks.what --infinity …/infinity`" in text
    assert "somebody" not in text


def test_without_a_compiler_the_limit_says_that_it_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(fma_peak, "_SECONDS", 0.01)
    peak = fma_peak.measure_peak()
    assert "for want of a C compiler" in peak.how
    assert np.isfinite(peak.gflops)
    assert peak.gflops > 0


def run_of(micros: float, *, rate: float = 100.0, foreign: float = 0.0) -> Run:
    return Run(Measured(summary=summary_of(rate), cpu_seconds=0.01, foreign_share=foreign), {"a": 1.0, "b": micros - 1})


def test_foreign_cpu_is_neither_the_servers_nor_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has worked 9 s in 5 s on two cores: 4 for the server, 0.5 for the one beside it, 3 for the client."""
    now = {"machine": iter((100.0, 109.0)), 1: iter((10.0, 14.0)), 2: iter((20.0, 20.5)), "own": iter((1.0, 4.0))}
    clock = iter((50.0, 55.0))
    monkeypatch.setattr(load, "machine_cpu_seconds", lambda: next(now["machine"]))
    monkeypatch.setattr(load, "tree_cpu_seconds", lambda pid: next(now[pid]))
    own = SimpleNamespace(times=lambda: SimpleNamespace(user=next(now["own"]), system=0.0), cpu_count=lambda: 2)
    monkeypatch.setattr(load, "os", own)
    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(load, "drive", lambda *_, **__: Phase(Load(concurrency=1, seconds=1.0)))
    measured = load.measure(1, 80, [], Load(concurrency=1, seconds=1.0), beside=2)
    shares = (measured.cpu_seconds, measured.foreign_share, measured.resting_share)
    assert shares == pytest.approx((4.0, 0.15, 0.05))


@pytest.mark.parametrize(
    ("shares", "num_tries", "is_disturbed"),
    [
        ([0.05], 1, False),
        ([0.2, 0.051, 0.01], 3, False),
        ([0.3, 0.2, 0.06, 0.4, 0.01], MAX_TRIES, True),
    ],
)
def test_a_disturbed_pair_is_measured_anew_a_few_times(shares: list[float], num_tries: int, is_disturbed: bool) -> None:
    """Either of the two may be the disturbed one."""
    pairs = [
        Pair(*(run_of(9.0, foreign=share if number % 2 == turn else 0.0) for turn in (0, 1)))
        for number, share in enumerate(shares)
    ]
    tries = iter(pairs)
    found = quiet_pair(lambda: next(tries))
    assert len(pairs) - len(list(tries)) == num_tries
    assert (found.foreign_share, found.is_disturbed) == (min(shares[:num_tries]), is_disturbed)


def test_the_ratio_is_that_of_the_medians() -> None:
    times = [(300.0, 310.0), (305.0, 290.0), (306.0, 300.0), (900.0, 300.0)]
    pairs = [Pair(run_of(this, rate=200.0), run_of(other)) for this, other in times]
    pairs[3] = Pair(run_of(900.0, rate=200.0, foreign=0.5), run_of(300.0))
    row = compare(host_path.CASES[0], pairs)
    assert (row["sum µs"], row["other's"], row["ratio"]) == ("306", "300", "1.018")
    assert (row["requests/s"], row["other's requests/s"], row["ratio of requests/s"]) == ("200", "100", "2.000")
    assert (row["pairs"], row["disturbed"], row["foreign CPU at most"]) == (4, 1, "50.0%")


def test_pairs_begin_with_either_server_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A B, B A and so on; what is this checkout's stays this checkout's."""
    asked: list[str] = []

    def measure(server: Any, _: host_path.Case, *, resting: Any, **__: object) -> Run:
        assert {server.name, resting.name} == {THIS, OTHER}
        asked.append(server.name)
        return run_of(100.0 if server.name == THIS else 50.0)

    monkeypatch.setattr(host_path, "measure", measure)
    servers: Sequence[Any] = [SimpleNamespace(name=THIS), SimpleNamespace(name=OTHER)]
    written = report.Report("what", "title")
    write_pairs(written, servers, host_path.CASES, pairs=4, seconds=1.0)
    assert asked[:: 2 * len(host_path.CASES)] == [THIS, OTHER, THIS, OTHER]
    assert asked[:2] == [THIS, OTHER]
    measurements, compared = (table.rows for table in written._tables[-2:])
    assert len(measurements) == 4 * len(host_path.CASES) * 2
    assert {(row["checkout"], row["sum µs"], row["disturbed"]) for row in measurements} == {
        (THIS, "100", ""),
        (OTHER, "50", ""),
    }
    assert [(row["case"], row["ratio"]) for row in compared] == [(case.name, "2.000") for case in host_path.CASES]


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--pairs", "3"], "--pairs must be at least 4"), (["--against", "."], "--against: . is no checkout")],
)
def test_what_could_not_be_compared_is_refused(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["host_path", *flags])
    with pytest.raises(SystemExit):
        host_path.parse()
    assert message in capsys.readouterr().err


def test_processes_of_a_server_are_counted_by_title() -> None:
    busy = "import time\nwhile time.process_time() < 0.05: pass\n"  # the kernel counts in steps of 10 ms
    inner = f"{busy}print(1, flush=True); input()"
    code = f"{busy}import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}, 'embedline'])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        found = processes.cpu_by_title(process.pid)
        assert len(found) == 2
        assert all(seconds > 0 for seconds in found.values())
        assert "supervisor" in found
        process.stdin.write(b"\n")
