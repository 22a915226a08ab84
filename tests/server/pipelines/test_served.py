"""Pipelines of a whole server: what they answer, for whom, and what becomes of a process that users' code ends."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.server_e2e.expected import FAKE, rows_of
from tests.server_e2e.running import Server, serving
from tests.server_e2e.test_refusals_at_start import refusal

FILE = """
import asyncio, os, time
import numpy as np
from numpy.typing import NDArray
from embedline import AsyncClient
from embedline.pipelines import pipeline, step

@step
async def embed(client: AsyncClient, text: str, model: str) -> NDArray[np.float32]:
    return (await client.embed([text], model)).embeddings[0]

@step
async def added(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    return a + b

@pipeline
def two_models(text: str) -> NDArray[np.float32]:
    return added(embed(text, "one"), embed(text, "two"))

@step
async def negate(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return -rows

@pipeline
def negative(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return negate(rows)

@step
async def end(text: str) -> str:
    if os.fork():
        os._exit(3)
    time.sleep(1000)  # with its connections, as the workers of a pool have them

@pipeline
def ends(text: str) -> str:
    return end(text)

@step
async def block(text: str) -> str:
    time.sleep(1000)
    return text

@pipeline(timeout=0.5)
def blocks(text: str) -> str:
    return block(text)

@step
async def wait(client: AsyncClient, text: str) -> str:
    await client.embed([text], "one")
    print("waits", flush=True)
    try:
        await asyncio.sleep(1000)
    finally:
        open("cancelled", "w").close()
    return text

@step
async def wait_for_file(client: AsyncClient, text: str) -> int:
    open("begun", "w").close()
    while not os.path.exists("go on"):
        await asyncio.sleep(0.01)
    found = await asyncio.gather(*(client.embed([text], "one") for _ in range(8)))  # on new connections
    return len(found)

@pipeline(timeout=1000.0)
def drained(text: str) -> int:
    return wait_for_file(text)

@pipeline(timeout=1000.0)
def waits(text: str) -> str:
    return wait(text)
"""
KEY = {"authorization": "Bearer sesame"}

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines")
    (folder / "mine.py").write_text(FILE)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    models = ("--served-model-name", "one", "--served-model-name", "two")
    ids = ("--model-id", "sentence-transformers/all-MiniLM-L6-v2") * 2
    flags = ("--pipelines", str(folder / "mine.py"), "--api-key", "sesame", "--heartbeat-timeout", "2")
    with serving(*FAKE, *ids, *models, *flags, folder=folder) as running:
        yield running


def test_a_pipeline_over_two_models_of_a_server(server: Server) -> None:
    answer = server.request("POST", "/pipelines/two_models", {"text": "hello"}, **KEY)
    assert answer.status == 200, answer
    assert np.allclose(np.float32(answer.json()), 2 * rows_of(["hello"])[0])


def test_arrays_as_bytes(server: Server) -> None:
    """More of them than is looked through as JSON, which would find lists in lists there."""
    rows = np.frombuffer(b"[" * 1_000_000, np.float32)
    fields = {"nd": True, "type": "<f4", "shape": rows.shape, "data": rows.tobytes()}
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack", **KEY}
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", "/pipelines/negative", msgspec.msgpack.encode({"rows": fields}), headers)
        answer = connection.getresponse()
        found = msgspec.msgpack.decode(answer.read())
    assert (answer.status, answer.getheader("content-type")) == (200, "application/msgpack")
    assert (found[b"type"], found[b"data"]) == ("<f4", (-rows).tobytes())


def test_the_list(server: Server) -> None:
    listed = server.request("GET", "/pipelines", **KEY).json()["pipelines"]
    assert [one["name"] for one in listed] == ["two_models", "negative", "ends", "blocks", "drained", "waits"]
    assert listed[0]["steps"] == ["embed", "embed 2", "added"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/pipelines/nothing", KEY, 404),
        ("POST", "/pipelines/two_models/", KEY, 400),
        ("GET", "/pipelines/two_models", KEY, 405),
        ("POST", "/pipelines/ends", {}, 401),
    ],
)
def test_refusals(method: str, path: str, headers: dict[str, str], status: int, server: Server) -> None:
    assert server.request(method, path, {}, **headers).status == status


def test_a_process_that_a_step_ends_is_started_again(server: Server) -> None:
    before = len(server.log.lines)
    answer = server.request("POST", "/pipelines/ends", {"text": "hello"}, **KEY)

    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    server.log.wait_for(r"not ready: no pipelines is ready", after=before)
    server.wait_ready(after=before)
    assert server.request("POST", "/pipelines/two_models", {"text": "hello"}, **KEY).status == 200


def test_a_step_that_blocks_its_process_blocks_nobody_else(server: Server) -> None:
    before = len(server.log.lines)
    answer = server.request("POST", "/pipelines/blocks", {"text": "hello"}, **KEY)

    assert answer.status in (503, 504)  # whoever notices first
    assert server.request("POST", "/v1/embeddings", {"input": "hello", "model": "one"}, **KEY).status == 200
    server.log.wait_for(r"pipelines 0 has ended", after=before)
    server.wait_ready(after=before)
    assert server.request("POST", "/pipelines/two_models", {"text": "hello"}, **KEY).status == 200


def test_a_client_that_disconnects_cancels_its_run(server: Server, folder: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/pipelines/waits", b'{"text": "hello"}', KEY)
    running = threading.Event()
    while not running.is_set():
        if 'embedline_pipelines_running{process="pipelines 0"} 1' in server.request("GET", "/metrics").body.decode():
            running.set()
    connection.close()
    while not (folder / "cancelled").exists():
        server.request("GET", "/livez")


def test_runs_are_drained(tmp_path: Path) -> None:
    """Their steps reach the server after its port has closed."""
    (tmp_path / "mine.py").write_text(FILE)
    model = ("--model-id", "sentence-transformers/all-MiniLM-L6-v2", "--served-model-name", "one")
    with (
        serving(*FAKE, *model, "--pipelines", str(tmp_path / "mine.py"), folder=tmp_path) as server,
        ThreadPoolExecutor() as pool,
    ):
        answer = pool.submit(server.request, "POST", "/pipelines/drained", {"text": "hello"})
        while not (tmp_path / "begun").exists():
            server.request("GET", "/livez")
        stopped = pool.submit(server.stop)
        while is_open(server.port):
            pass
        (tmp_path / "go on").touch()
        assert (answer.result().status, answer.result().json()) == (200, 8)
        assert stopped.result() == 0


def is_open(port: int) -> bool:
    """Whether somebody accepts there. While the port closes, nobody answers."""
    with contextlib.suppress(TimeoutError):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            return False
    return True


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "--pipelines takes a Python file, and there is none at this path"),
        ("1/0", "mine.py: line 1: ZeroDivisionError"),
    ],
    ids=["missing", "raises"],
)
def test_a_start_with_a_wrong_file_is_refused(text: str | None, problem: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    assert problem in refusal(*FAKE, "--pipelines", str(tmp_path / "mine.py"), folder=tmp_path)
