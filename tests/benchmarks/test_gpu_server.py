"""The GPU benchmark's part for whole servers, on a CPU at toy sizes: its figures, and servers that die or hang."""

import csv
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoModel

from benchmarks.gpu import model_folders, server, server_cases, server_start
from benchmarks.gpu.bench import Bench, TimeUp
from benchmarks.gpu.clock import CpuClock
from benchmarks.gpu.fused_models import Subject
from benchmarks.gpu.model_folders import Folders, ModelFolder, write
from benchmarks.gpu.random_models import build
from benchmarks.gpu.rows import FAILED, Figure, Key, Rows
from benchmarks.gpu.server import Case, Runner
from benchmarks.gpu.server_cases import Embedding, Traffic, longest_gap
from benchmarks.gpu.server_loads import Bulk, Queries
from benchmarks.gpu.server_shares import BULK_RATE, SHARE, SHARE_OF_BEST, TOKENS_A_BATCH, bulk_key, note_share
from benchmarks.gpu.server_start import Starter, bound, unpacked
from benchmarks.gpu.shapes import TINY_BERT, TINY_QWEN3
from benchmarks.gpu.targets import BF16, CACHED, NOTHING_CACHED
from benchmarks.measuring import servers
from benchmarks.measuring.servers import Recipe
from engine.model.coverage import Use

ROOT = Path(__file__).resolve().parents[2]
TRAFFIC = Traffic(
    bulks=(Bulk(seqlen=16, batch_size=4, concurrency=2, seconds=0.3),),
    queries=Queries(seqlen=8, rate=20.0, seconds=0.3),
    patience=0.5,
)
CASE = Case(TINY_BERT, BF16, Embedding(TINY_BERT, BF16, TRAFFIC))
START = Key("cold start", TINY_BERT.name, BF16, NOTHING_CACHED)
BULK = bulk_key(TINY_BERT, BF16, 16)
# Says what our server says, as far as it is asked, and stops itself at a request of several texts.
STAND_IN = """
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"models": [{"info": {"engine": "none", "dtype": "none", "notes": []}}]})
    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        if len(texts) == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        self.answer({"data": [{"embedding": [1.0]}]})
    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
    def log_message(self, *words): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "rows.csv", machine="this one")


@pytest.fixture
def runner(rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.setattr(server_start, "_STOP_SECONDS", 0.1)
    monkeypatch.setattr(server_cases, "_NEXT_SECONDS", 0.5)
    bench = Bench(CpuClock(), rows, True, time.monotonic() + 1000.0)
    folders = Folders(tmp_path / "models", bench.clock.device)
    yield Runner(bench, folders, Starter(bench, [], tmp_path / "caches"))
    folders.close()


def serve_by(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = "import os, sys; exec(os.environ['CODE'])"
    monkeypatch.setenv("CODE", code)
    recipe = Recipe("Embedline", (sys.executable, "-c", load, "{port}"), {"PYTHONPATH": ""})
    monkeypatch.setattr(server_start, "embedline", lambda *_: recipe)


class Loading:
    """Time that stands still until a server's log says that it loads; then all of it is over."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def perf_counter(self) -> float:
        return 1000.0 if self._log.exists() and "loading" in self._log.read_text() else 0.0

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)


def notes_of(rows: Rows) -> dict[Key, str]:
    return {row.key: row.figure.note for row in rows if row.figure.metric == FAILED}


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_all_of_it_is_measured_once(tmp_path: Path) -> None:
    command = ["make", "first-gpu-server", f"OUT={tmp_path}", f"GPU_PYTHON={sys.executable}"]
    command += ["ARGS=--device cpu --tiny --seconds 900"]  # enough on a busy machine
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = read(tmp_path)
    assert {row["kind"] for row in found} == {"import", "machine", "cold start", "server", "engine alone"}
    assert [row for row in found if row["metric"] == FAILED] == []
    failed = {row["shape"] for row in found if row["metric"].endswith(" failed") and row["value"] != "0"}
    assert failed <= {"engine killed"}  # on a busy machine it may be away for longer than requests wait
    starts = {row["shape"]: row["note"] for row in found if row["kind"] == "cold start" and "fp8" in row["precision"]}
    assert {shape: "quantized weights taken from" in note for shape, note in starts.items()} == {
        NOTHING_CACHED: False,
        CACHED: True,
    }
    (outage,) = [float(row["value"]) for row in found if row["metric"] == "longest without an answer"]
    assert outage > 0.5  # the engine's process was started anew
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert {row["kind"] for row in read(tmp_path)[len(found) :]} == {"import", "machine"}


def read(out: Path) -> list[dict[str, str]]:
    (file,) = out.glob("*.csv")
    with file.open(newline="") as opened:
        return [row for row in csv.DictReader(opened) if row["metric"] not in ("begun", "took")]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('engine 0: SIGSEGV in graphs'); raise SystemExit(1)", "ended with 1: engine 0: SIGSEGV in graphs"),
        ("import os; print('loading', flush=True); os.kill(os.getpid(), 9)", "ended with -9: loading"),
        (
            "print('loading', flush=True); import threading; threading.Event().wait()",
            "within 1 s of its start: loading",
        ),
    ],
    ids=["dies", "killed", "hangs"],
)
def test_a_server_that_does_not_start_is_a_row_and_a_log(
    code: str, reason: str, runner: Runner, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_by(code, monkeypatch)
    log = rows.path.with_name("server-toy-bert-fused-bf16.log")
    if "within" in reason:
        monkeypatch.setattr(server, "_PATIENCE", 1.0)
        monkeypatch.setattr(servers, "time", Loading(log))
    runner.attempt(CASE, None)
    ((key, note),) = notes_of(rows).items()
    assert key == START
    assert reason in note
    assert reason.rpartition(": ")[2] in log.read_text()
    assert CASE.open_keys(runner.bench)[0] == START  # the next run tries it again


def test_a_server_that_hangs_under_load_is_left(runner: Runner, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_by(STAND_IN, monkeypatch)
    runner.attempt(CASE, None)
    assert rows.value(START, "to the first embedding") is not None
    assert list(notes_of(rows)) == [BULK]
    assert rows.value(Key("server", TINY_BERT.name, BF16, "interactive alone"), "interactive p50") is None


def test_a_start_that_the_time_does_not_hold_is_no_failure(
    runner: Runner, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_by("import threading; threading.Event().wait()", monkeypatch)
    runner.bench.deadline = time.monotonic() + 1.0
    with pytest.raises(TimeUp):
        runner.attempt(CASE, None)
    assert not notes_of(rows)


def test_the_next_folder_is_written_while_a_server_starts(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_by("raise SystemExit(1)", monkeypatch)
    runner.attempt(CASE, replace(CASE, shape=TINY_QWEN3))
    runner.folders.close()
    assert {path.name for path in tmp_path.glob("models/*.written")} == {
        "toy-bert-embed.written",
        "toy-qwen3-embed.written",
    }


def test_a_folder_holds_the_model_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folders, "_SHARD_BYTES", 10_000)
    device = CpuClock().device
    folder = write(ModelFolder(TINY_QWEN3), tmp_path / "model", device)
    assert len(list(folder.glob("*.safetensors"))) > 2
    expected = build(TINY_QWEN3, device, is_tame=True).module.state_dict()
    loaded = AutoModel.from_pretrained(folder).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(loaded[name].equal(expected[name]) for name in expected)


def test_a_reranker_answers_with_a_word(tmp_path: Path) -> None:
    folder = write(ModelFolder(TINY_QWEN3, Use.GENERATIVE_RERANK), tmp_path / "model", CpuClock().device)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("no yes w5").ids == [198, 199, 5]
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


def test_shares_are_of_batches_of_the_same_tokens_and_of_the_best(rows: Rows, runner: Runner) -> None:
    rows.add(BULK, [Figure(BULK_RATE, 90.0, "tokens/s"), Figure(TOKENS_A_BATCH, 100.0, "")])
    rates = [Figure("rate at T=96", 100.0, "tokens/s"), Figure("rate at T=8192", 300.0, "tokens/s")]
    rows.add(Key("model", TINY_BERT.name, BF16, "S=16"), rates)
    note_share(runner.bench, Subject(TINY_BERT, BF16, runner.bench.clock.device), 16)
    assert [rows.value(BULK, metric) for metric in (SHARE, SHARE_OF_BEST)] == [0.9, 0.3]
    assert not rows.of_kind("engine alone")


def test_what_the_engine_does_alone_is_measured_where_no_row_tells_it(rows: Rows, runner: Runner) -> None:
    rows.add(BULK, [Figure(BULK_RATE, 90.0, "tokens/s"), Figure(TOKENS_A_BATCH, 40.0, "")])
    rows.add(Key("model", TINY_BERT.name, BF16, "S=16"), [Figure("rate at T=96", 1e12, "tokens/s")])
    note_share(runner.bench, Subject(TINY_BERT, BF16, runner.bench.clock.device), 16)
    alone = rows.value(Key("engine alone", TINY_BERT.name, BF16, "S=16"), "rate at T=40")  # two and a half texts
    assert alone is not None
    assert rows.value(BULK, SHARE) == 90.0 / alone


def test_the_longest_time_without_an_answer_begins_at_the_kill() -> None:
    assert longest_gap([1.0, 9.0, 13.0, 14.0], since=10.0) == 3.0
    assert longest_gap([11.0, 15.0], since=10.0) == 4.0


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_start, "_MAX_LOG_BYTES", 100)
    log = tmp_path / "log"
    log.write_text("first" + 500 * "." + "last")
    bound(log)
    text = log.read_text()
    assert (text[:5], text[-4:]) == ("first", "last")
    assert len(text) < 150


def test_wheels_are_unpacked_and_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with zipfile.ZipFile(tmp_path / "thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing/__init__.py", "number = 7\n")
    path = unpacked(str(tmp_path), tmp_path / "unpacked")
    asked = "import json, thing; print(json.dumps(thing.number))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    ran = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, check=True)
    assert json.loads(ran.stdout) == 7
    assert unpacked(None, tmp_path / "nothing") == []


def test_a_folder_without_wheels_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no \*\.whl"):
        unpacked(str(tmp_path), tmp_path / "x")
