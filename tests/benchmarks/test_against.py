"""benchmarks/against.sh with a `docker` that starts stand-ins on this machine's CPU."""

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_e2e.running import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "against.sh"
IMAGES = {"TEI_IMAGE": "stand-in/tei:1", "VLLM_IMAGE": "stand-in/vllm:2", "EMBEDLINE_IMAGE": "stand-in/embedline:3"}

# Says what it was asked into $LOG; "run" starts a server on the published port and prints its process number.
DOCKER = f"""#!{sys.executable}
import json, os, re, signal, subprocess, sys
words = sys.argv[1:]
with open(os.environ["LOG"], "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[0] == "version":
    sys.exit(os.environ.get("NO_DAEMON"))
elif words[0] == "run":
    port = re.search(r"127\\.0\\.0\\.1:(\\d+):", " ".join(words))[1]
    if any(image in words for image in os.environ.get("BROKEN", "").split()):
        sys.exit("no such image")
    server = subprocess.Popen([sys.executable, os.environ["STAND_IN"], port], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    print(server.pid)
elif words[0] == "rm":
    os.kill(int(words[-1]), signal.SIGKILL)
"""
STAND_IN = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        data = [{"embedding": [1.0], "index": number} for number in range(len(texts))]
        body = json.dumps({"data": data, "usage": {"prompt_tokens": 7 * len(texts)}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

class Server(ThreadingHTTPServer):
    daemon_threads = True

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment in which `docker` is ours."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "docker").write_text(DOCKER)
    (tools / "docker").chmod(0o755)
    (tmp_path / "server.py").write_text(STAND_IN)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    return (
        os.environ
        | IMAGES
        | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "LOG": str(tmp_path / "asked"),
            "STAND_IN": str(tmp_path / "server.py"),
            "PYTHON": sys.executable,
            "PORT": str(port),
            "OUT": str(tmp_path / "out"),
            "CACHE": str(tmp_path / "cache"),
            "RATES": "40 80",
            "DURATION": "0.3",
            "WARMUP": "0.1",
            "PATIENCE": "30",
        }
    )


def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", SCRIPT], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def rows(environment: dict[str, str]) -> list[dict[str, str]]:
    (file,) = Path(environment["OUT"]).glob("*.csv")
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def asked(environment: dict[str, str], word: str) -> list[str]:
    """Lines of what docker was asked that begin so."""
    return [line for line in Path(environment["LOG"]).read_text().splitlines() if line.startswith(f'["{word}"')]


@pytest.mark.full
def test_all_servers_get_the_same_load_and_one_table(surroundings: dict[str, str]) -> None:
    ran = run(surroundings)
    assert ran.returncode == 0, ran.stderr
    found = rows(surroundings)
    assert [(row["server"], row["requests/s offered"]) for row in found] == [
        (server, rate) for server in ("tei", "vllm", "embedline") for rate in ("40", "80")
    ]
    assert {row["image"] for row in found} == set(IMAGES.values())
    assert all(float(row["texts/s"]) > 0 and row["failed"] == "" for row in found)
    assert "| tei | stand-in/tei:1 |" in ran.stdout
    (report,) = Path(surroundings["OUT"]).glob("*.md")
    assert "| embedline | stand-in/embedline:3 |" in report.read_text()


@pytest.mark.full
def test_each_container_has_the_card_to_itself(surroundings: dict[str, str]) -> None:
    surroundings |= {"GPU": "3", "RATES": "40", "VLLM_ARGS": "--max-model-len 512"}
    assert run(surroundings).returncode == 0
    lines = Path(surroundings["LOG"]).read_text().splitlines()
    assert [line.split('"')[1] for line in lines] == ["version", *["run", "rm"] * 3]
    assert all('"--gpus", "device=3"' in line for line in asked(surroundings, "run"))
    assert '"--runner", "pooling", "--max-model-len", "512"]' in asked(surroundings, "run")[1]


@pytest.mark.full
def test_a_server_that_does_not_start_leaves_the_others_measured(surroundings: dict[str, str]) -> None:
    surroundings |= {"BROKEN": IMAGES["VLLM_IMAGE"], "RATES": "40", "PATIENCE": "5"}
    ran = run(surroundings)
    assert ran.returncode == 1
    assert "vllm does not answer" in ran.stderr
    assert [row["server"] for row in rows(surroundings)] == ["tei", "embedline"]


def test_an_unknown_server_is_refused(surroundings: dict[str, str]) -> None:
    ran = run(surroundings | {"SERVERS": "tei infinity"})
    assert ran.returncode == 2
    assert "no server is called infinity" in ran.stderr
    assert not Path(surroundings["LOG"]).exists()


def test_without_a_daemon_no_server_is_tried(surroundings: dict[str, str]) -> None:
    ran = run(surroundings | {"NO_DAEMON": "1"})
    assert ran.returncode == 1
    assert ran.stderr == "against.sh: docker does not answer; see docker version\n"
    assert asked(surroundings, "run") == []


def test_a_table_of_nothing_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.against", "table", "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "nothing was measured" in ran.stderr


def test_it_says_that_it_has_not_run_on_a_gpu() -> None:
    assert "Never run on a GPU yet" in SCRIPT.read_text()
