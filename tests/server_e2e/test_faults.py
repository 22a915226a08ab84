"""Processes die, hang and fail under load: the others go on, no request hangs, no row is ever wrong."""

import os
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.server_e2e.expected import COMPACT, FAKE, SPREAD, ids_of, rows_of
from tests.server_e2e.load import LOST_WITH_A_FRONTEND, Load
from tests.server_e2e.running import PATIENCE, Server, serving
from tests.tiers import full

pytestmark = pytest.mark.faults

POISON = 29_000  # an id that no text here has and the warm-up does not reach
FAKE_FLAGS = (*FAKE, "--fake-cost-ms", "2")


@pytest.mark.holds(
    "Every text gets its own row", "Any one process but the supervisor may be killed at any time", "When a process dies"
)
@pytest.mark.parametrize(
    ("flags", "titles"),
    [
        ((*SPREAD, "--frontends", "2"), ("engine 0", "tokenizer 0", "batch manager 0")),
        (COMPACT, ("engine 0", "frontend 0")),
        *full(((*SPREAD, "--frontends", "2"), ("frontend 0",) * 3)),
    ],
)
def test_a_process_is_killed_under_load(flags: tuple[str, ...], titles: tuple[str, ...], tmp_path: Path) -> None:
    with serving(*FAKE_FLAGS, *flags, folder=tmp_path) as server, Load(server) as load:
        for title in titles:
            server.log.wait_for(f"{title} is ready")
        load.wait_for(50)
        for title in titles:
            seen = len(server.log.lines)
            server.kill(title)
            server.log.wait_for(f"{title} has ended: SIGKILL", after=seen)
            server.log.wait_for(f"{title} is ready", after=seen)
            # so long that nothing is on its second try when the next one dies: that would be blamed for it
            load.wait_for(400)
    assert not load.wrong
    if "frontend 0" in titles:  # its own connections are lost with it
        assert set(load.outcomes) <= {200, *LOST_WITH_A_FRONTEND}
    else:
        assert set(load.outcomes) == {200}


@pytest.mark.full
@pytest.mark.holds("Any one process but the supervisor may be killed at any time", "When a process dies")
def test_several_of_everything(tmp_path: Path) -> None:
    flags = ("--frontends", "2", "--tokenization-workers", "2", "--devices", "a,b,c,d", "--batch-managers", "2")
    with serving(*FAKE_FLAGS, *flags, folder=tmp_path) as server, Load(server) as load:
        assert len(server.processes()) == 2 + 2 + 4 + 2
        load.wait_for(50)
        for title in ("engine 2", "tokenizer 1", "batch manager 1", "engine 0"):
            seen = len(server.log.lines)
            server.kill(title)
            server.log.wait_for(f"{title} is ready", after=seen)
            load.wait_for(50)
    assert not load.wrong
    assert set(load.outcomes) == {200}


@pytest.mark.full
@pytest.mark.holds("When a process dies")
def test_a_stopped_engine_is_killed_and_its_requests_are_answered(tmp_path: Path) -> None:
    with serving(*FAKE_FLAGS, "--heartbeat-timeout", "2", folder=tmp_path) as server, Load(server) as load:
        load.wait_for(20)
        os.kill(server.processes()["engine 0"], signal.SIGSTOP)
        server.log.wait_for("engine 0 is stuck and will be killed: no heartbeat")
        load.wait_for(20)
    assert not load.wrong
    assert set(load.outcomes) == {200}


@pytest.mark.full
@pytest.mark.holds("Slow and stuck engines are told apart", "When a process dies")
def test_a_batch_that_never_ends_is_given_up(tmp_path: Path) -> None:
    flags = ("--token-ids", "any", "--fake-fault", f"hang@token:{POISON}", "--batch-timeout", "1")
    with serving(*FAKE_FLAGS, *flags, folder=tmp_path) as server:
        reply = server.embed([[5, POISON], [6]], encoding_format="bytes")

        # alone with the engine when it hung a second time: it is to blame, and the other processes are well
        assert reply.status == 500
        assert reply.json()["error"]["param"] == "input[0]"
        server.wait_ready(after=len(server.log.lines) - 1)
        assert server.embed("well").status == 200


@pytest.mark.full
@pytest.mark.holds("Slow and stuck engines are told apart", "When a process dies")
def test_a_slow_batch_is_left_alone(tmp_path: Path) -> None:
    with serving(*FAKE, "--fake-cost-ms", "3000", "--heartbeat-timeout", "2", folder=tmp_path) as server:
        assert server.embed("slow").status == 200
        assert not [line for line in server.log.lines if "has ended" in line]


@pytest.mark.holds("A bad input fails alone", "OpenAI's route", "When a process dies")
@pytest.mark.parametrize("fault", ["exit", *full("fail", "nan")])
def test_poison_takes_nobody_with_it(fault: str, tmp_path: Path) -> None:
    with serving(
        *FAKE_FLAGS, "--token-ids", "any", "--fake-fault", f"{fault}@token:{POISON}", folder=tmp_path
    ) as server:
        with Load(server, num_clients=4) as load:
            load.wait_for(20)
            reply = server.embed([[5], [6], [7, POISON, 8], [9]])
            load.wait_for(20)

        assert reply.status == 500
        error = reply.json()["error"]
        assert error["param"] == "input[2]"
        assert error["type"] == "server_error"
        assert not load.wrong
        assert set(load.outcomes) == {200}
        # what was beside it in a batch says whether a group had to be tried first
        num_deaths = len([line for line in server.log.lines if "engine 0 has ended" in line])
        assert num_deaths in ((2, 3) if fault == "exit" else (0,))

        again = server.embed([[5], [7, POISON, 8]])
        assert again.status == 500
        assert again.json()["error"]["param"] == "input[1]"
        assert len([line for line in server.log.lines if "engine 0 has ended" in line]) == num_deaths


@pytest.mark.full
def test_out_of_memory_is_met_with_smaller_batches(tmp_path: Path) -> None:
    # at 20 ms a batch the warm-up stays below 600 tokens
    with serving(*FAKE, "--fake-cost-ms", "20", "--fake-fault", "oom@tokens:600", folder=tmp_path) as server:
        texts = [f"{number} " + "word " * 100 for number in range(32)]
        assert sum(len(ids_of(text)) for text in texts) > 3000

        reply = server.embed(texts, encoding_format="bytes")

        assert reply.status == 200
        assert np.array_equal(np.frombuffer(reply.body, "<f4").reshape(32, -1), rows_of(texts))


@pytest.mark.full
@pytest.mark.holds("When a process dies")
def test_requests_are_refused_when_no_engine_comes_back(tmp_path: Path) -> None:
    # the first start is well; what is started again dies at once, for ever
    marker = tmp_path / "started"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *engine.worker*) [ -e "{marker}" ] && exit 7; touch "{marker}";; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o700)
    flags = ("--engine-python", str(python), "--engine-restart-grace", "0.2")
    with serving(*FAKE_FLAGS, *flags, folder=tmp_path) as server:
        server.kill("engine 0")
        server.log.wait_for("engine 0 has ended: exit status 7")

        reply = server.embed("anyone there?")

        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert server.request("GET", "/readyz").status == 503
        assert server.request("GET", "/livez").status == 200
        server.log.wait_for("engine 0 can't be started: exit status 7")
        assert server.process.wait(PATIENCE) == 1


@pytest.mark.full
@pytest.mark.holds("Shutdown")
def test_an_engine_that_never_starts_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    server = Server(*FAKE, "--fake-fault", "exit@load", folder=tmp_path)
    try:
        server.log.wait_for("engine 0 can't be started: exit status 70")
        assert server.process.wait(PATIENCE) == 1
    finally:
        server.close()


@pytest.mark.full
@pytest.mark.holds("Deadlines")
def test_a_deadline_that_passes_is_504_and_the_queue_forgets_it(tmp_path: Path) -> None:
    with serving(*FAKE, "--fake-cost-ms", "300", folder=tmp_path) as server:
        reply = server.request("POST", "/v1/embeddings", {"input": "late"}, request_timeout_ms="50")

        assert reply.status == 504
        assert reply.json()["error"]["code"] == "deadline_exceeded"
        assert server.embed("in time").status == 200


@pytest.mark.full
@pytest.mark.holds("Back-pressure")
def test_too_long_a_wait_is_429_with_a_time_to_come_back(tmp_path: Path) -> None:
    flags = ("--fake-tokens-per-second", "3000", "--interactive-max-wait", "0.2", "--bulk-max-wait", "0.2")
    with serving(*FAKE, *flags, folder=tmp_path) as server:
        with Load(server, num_clients=12) as load:
            refused = server.embed("word " * 200)
            while refused.status == 200:
                refused = server.embed("word " * 200)

        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert not load.wrong
        assert set(load.outcomes) <= {200, 429}


@pytest.mark.full
@pytest.mark.holds("Work for a disconnected client is dropped", "Cancellation")
def test_a_client_that_leaves_costs_nothing(tmp_path: Path) -> None:
    with serving(*FAKE, "--fake-cost-ms", "400", folder=tmp_path) as server:
        connections = []
        for _ in range(20):
            connection = server.connect()
            connection.request("POST", "/v1/embeddings", b'{"input": "gone soon"}')
            connections.append(connection)
        for connection in connections:
            connection.close()

        assert server.embed("patient").status == 200

        # at most what was in the engine when they left was computed: two batches, and ours
        text = server.request("GET", "/metrics").body.decode()
        name = 'embedline_batch_sequences_sum{model="sentence-transformers/all-MiniLM-L6-v2"} '
        computed = [float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)]
        assert sum(computed) < 20


@pytest.mark.full
def test_clients_that_leave_in_the_middle_of_any_route_harm_nobody(tmp_path: Path) -> None:
    with serving(*FAKE, folder=tmp_path) as server:
        before = server.processes()
        for _ in range(30):
            for path in ("/metrics", "/info", "/openapi.json"):
                with socket.create_connection(("127.0.0.1", server.port)) as connection:
                    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())

        assert server.embed("still there").status == 200
        assert server.request("GET", "/metrics").status == 200
        assert server.processes() == before


@pytest.mark.full
def test_an_interpreter_that_cannot_be_run_for_a_while_is_tried_again(tmp_path: Path) -> None:
    python, hidden = tmp_path / "python", tmp_path / "hidden"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    with serving(*FAKE_FLAGS, "--engine-python", str(python), folder=tmp_path) as server:
        python.rename(hidden)
        seen = len(server.log.lines)
        server.kill("engine 0")
        _, seen = server.log.wait_for("engine 0 can't be started", after=seen)
        hidden.rename(python)

        server.log.wait_for("engine 0 is ready", after=seen)
        assert server.embed("well again").status == 200
