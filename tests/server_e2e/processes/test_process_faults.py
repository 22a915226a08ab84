"""Descriptors run out, nobody reads the log, the supervisor is stopped: the server goes on, and can be asked."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.server_e2e.expected import COMPACT, FAKE, SPREAD
from tests.server_e2e.running import PATIENCE, Server, is_running, serving

FEW_FILES = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def connections(port: int, number: int) -> contextlib.ExitStack:
    """So many that say nothing."""
    stack = contextlib.ExitStack()
    for _ in range(number):
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    return stack


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Limits", "When a process dies")
def test_idle_connections_take_no_descriptor_that_a_restart_needs(tmp_path: Path) -> None:
    monitor = free_port()
    flags = (*FAKE, *SPREAD, "--prometheus-port", str(monitor), "--frontends", "1")
    with serving(*flags, folder=tmp_path, wrapper=FEW_FILES) as server, contextlib.ExitStack() as idle:
        idle.enter_context(connections(monitor, 300))
        idle.enter_context(connections(server.port, 300))
        for title in ("tokenizer 0", "engine 0"):
            seen = len(server.log.lines)
            server.kill(title)
            server.log.wait_for(f"{title} is ready", after=seen)

        assert server.embed("still there").status == 200
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", monitor, timeout=PATIENCE)) as asking:
            asking.request("GET", "/metrics")
            assert asking.getresponse().status == 200
        assert not [line for line in server.log.lines if "Too many open files" in line]


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("The log", "When a process dies", "Shutdown")
def test_standard_error_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"\n" * 65536)
    os.set_blocking(write_end, True)
    port = free_port()
    server = Server(*FAKE, *SPREAD, "--port", str(port), "--log-level", "debug", folder=tmp_path, stderr=write_end)
    with contextlib.closing(server):
        server.port = port
        until_answered(server)
        pid = server.processes()["tokenizer 0"]
        os.kill(pid, signal.SIGKILL)
        while server.processes().get("tokenizer 0", pid) == pid:
            assert server.embed("while it restarts").status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
    for descriptor in (read_end, write_end):
        os.close(descriptor)


def until_answered(server: Server) -> None:
    """As its log can't be read, ask until it is ready."""
    pause = threading.Event()
    for _ in range(1000):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if server.request("GET", "/readyz").status == 200:
                return
        pause.wait(0.05)
    raise AssertionError("it never became ready")


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("Metrics")
def test_metrics_of_a_stuck_supervisor_are_refused(tmp_path: Path) -> None:
    with serving(*FAKE, "--frontends", "1", folder=tmp_path) as server:
        server.process.send_signal(signal.SIGSTOP)
        try:
            reply = server.request("GET", "/metrics")
            assert (reply.status, reply.body) == (503, b"the supervisor does not answer")
            assert server.embed("well").status == 200
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert server.request("GET", "/metrics").status == 200


@pytest.mark.holds("When a process dies")
def test_engines_go_first_when_memory_runs_out(fake_server: Server) -> None:
    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    own = score(fake_server.process.pid)
    scores = {title.rpartition(" ")[0]: score(pid) - own for title, pid in fake_server.processes().items()}
    wanted = {"engine": 500, "tokenizer": 300, "batch manager": 200, "frontend": 100}
    assert {"engine", "frontend"} <= scores.keys()
    assert scores == {role: wanted[role] for role in scores}


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("The log")
def test_a_signal_shows_where_every_process_is(tmp_path: Path) -> None:
    with serving(*FAKE, "--frontends", "1", "--tokenization-workers", "2", folder=tmp_path) as server:
        stopped = server.processes()["tokenizer 1"]
        os.kill(stopped, signal.SIGSTOP)
        server.process.send_signal(signal.SIGUSR1)
        server.log.wait_for("SIGUSR1: that is all")
        lines = server.log.lines
        os.kill(stopped, signal.SIGCONT)

        held = {
            words[0]: words[1] for line in lines if len(words := line.partition("supervisor: ")[2].split(" holds ")) > 1
        }
        assert held.keys() == {"supervisor", *server.processes()}
        assert held.pop("tokenizer 1") == "no answer"
        assert json.loads(held["frontend 0"])["embedline_open_requests"] == 0
        assert json.loads(held["engine 0"]) == {"batches": 0, "busy": None}
        for title in ("frontend 0", "engine 0", "batch manager 0", "tokenizer 0"):
            start = next(number for number, line in enumerate(lines) if line.endswith("its stacks:") and title in line)
            end = next(number for number, line in enumerate(lines) if f"{title} holds" in line)
            assert any('File "' in line for line in lines[start:end]), title
        assert server.embed("as before").status == 200
        assert all(map(is_running, server.processes().values()))


@pytest.mark.full
@pytest.mark.holds("The log")
def test_a_signal_shows_what_the_parts_inside_a_frontend_hold(tmp_path: Path) -> None:
    with serving(*FAKE, *COMPACT, folder=tmp_path) as server:
        server.process.send_signal(signal.SIGUSR1)
        server.log.wait_for("SIGUSR1: that is all")
        line = next(line for line in server.log.lines if "frontend 0 holds" in line)
        held = json.loads(line.partition(" holds ")[2])
        assert held["tokenizer"] == {"pieces": 0, "frontends": 1}
        assert held["embedline_queue_sequences"] == held["embedline_open_requests"] == 0


@pytest.mark.full
@pytest.mark.faults
@pytest.mark.holds("When a process dies")
@pytest.mark.parametrize(
    ("flags", "others"),
    [((*SPREAD, "--frontends", "1", "--tokenization-workers", "0"), {"batch manager 0"}), (COMPACT, set())],
    ids=["spread", "compact"],
)
def test_a_frontend_is_restarted_with_what_is_inside(flags: tuple[str, ...], others: set[str], tmp_path: Path) -> None:
    with serving(*FAKE, *flags, folder=tmp_path) as server:
        before = server.processes()
        assert before.keys() == {"frontend 0", "engine 0", *others}
        texts = ["a text", "another one " * 5_000]  # a long one is tokenized in a thread
        answer = server.embed(texts, truncate_prompt_tokens=-1, encoding_format="bytes")
        assert answer.status == 200
        _, start = server.log.wait_for("frontend 0 is ready")
        os.kill(before["frontend 0"], signal.SIGKILL)
        server.log.wait_for("frontend 0 is ready", after=start)
        assert server.embed(texts, truncate_prompt_tokens=-1, encoding_format="bytes").body == answer.body


@pytest.mark.full
def test_too_few_descriptors_end_the_start_with_one_line(tmp_path: Path) -> None:
    wrapper = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    server = Server(*FAKE, folder=tmp_path, wrapper=wrapper)
    with contextlib.closing(server):
        assert server.process.wait(PATIENCE) == 2
        server.log.join()
        assert "a process may open 64 files, and this server needs " in server.log.lines[-1]
