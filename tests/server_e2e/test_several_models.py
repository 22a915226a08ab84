"""A whole server with two models out of a file: each name answers with its own rows, lengths and limits."""

from collections.abc import Iterator

import numpy as np
import pytest

from engine import fake
from tests.server_e2e.expected import ids_of
from tests.server_e2e.running import Server, serving

pytestmark = pytest.mark.holds("Readiness")

DIMENSIONS = {"small": 8, "large": 96}
CONFIG = """
engine = "fake"
batch-managers = 2

[[model]]
model-id = "sentence-transformers/all-MiniLM-L6-v2"
served-model-name = "small"
fake-dim = 8
devices = "cpu"
max-input-length = 16
auto-truncate = false

[[model]]
model-id = "sentence-transformers/all-MiniLM-L6-v2"
served-model-name = "large"
fake-dim = 96
devices = "cuda:0,cuda:1"
default-prompt = "query: "
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "embedline.toml").write_text(CONFIG)
    with serving("--config", "embedline.toml", folder=folder, environment={"EMBEDLINE_DEVICES": ""}) as running:
        yield running


def rows(name: str, texts: list[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    table = fake.table(DIMENSIONS[name])
    prompt = "query: " if name == "large" else ""
    return np.stack([fake.row(table, np.array(ids_of(prompt + text), np.int32).tobytes()) for text in texts])


@pytest.mark.holds("Requests and answers", "Prompts")
def test_each_name_answers_with_its_own_rows(server: Server) -> None:
    texts = ["hello world", "embed this"]
    for name in ["small", "large"] * 3:
        reply = server.embed(texts, model=name, encoding_format="bytes")

        assert reply.headers["x-embedline-shape"] == f"2,{DIMENSIONS[name]}"
        assert np.array_equal(np.frombuffer(reply.body, "<f4").reshape(2, -1), rows(name, texts))
        assert server.embed("a", model=name).json()["model"] == name


@pytest.mark.holds("OpenAI's route")
def test_usage_counts_special_tokens_and_the_prompt(server: Server) -> None:
    numbers = [server.embed("hello world", model=name).json()["usage"]["prompt_tokens"] for name in ("small", "large")]
    assert numbers == [len(ids_of("hello world")), len(ids_of("query: hello world"))]
    assert numbers == [4, 6]


@pytest.mark.holds("Limits")
def test_each_model_has_its_own_length_and_truncation(server: Server) -> None:
    text = "word " * 50

    assert server.embed(text, model="large").status == 200
    refused = server.embed(text, model="small")
    assert (refused.status, refused.json()["error"]["param"]) == (400, "input")


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("name", ["any", "", "sentence-transformers/all-MiniLM-L6-v2"])
def test_another_name_is_refused(server: Server, name: str) -> None:
    reply = server.embed("hello", model=name)

    assert (reply.status, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.holds("Requests and answers")
def test_both_are_listed(server: Server) -> None:
    listed = {model["id"]: model for model in server.request("GET", "/v1/models").json()["data"]}
    assert {name: model["dimensions"] for name, model in listed.items()} == DIMENSIONS
    assert {name: model["max_model_len"] for name, model in listed.items()} == {"small": 16, "large": 256}

    models = server.request("GET", "/info").json()["models"]
    assert {model["info"]["name"]: model["info"]["dimensions"] for model in models} == DIMENSIONS


def test_each_has_its_own_readiness(server: Server) -> None:
    listed = {model["id"]: model["ready"] for model in server.request("GET", "/v1/models").json()["data"]}
    assert listed == {"small": True, "large": True}
    assert [server.request("GET", f"/readyz?model={name}").status for name in ("small", "large", "none")] == [
        200,
        200,
        404,
    ]
    lines = server.request("GET", "/metrics").body.decode().splitlines()
    for name in listed:
        assert f'embedline_model_ready{{model="{name}"}} 1.0' in lines
        assert f'embedline_model_padded{{engine="fake",model="{name}"}} 0.0' in lines
    assert [model["info"]["is_padded"] for model in server.request("GET", "/info").json()["models"]] == [False] * 2


@pytest.mark.holds("Engines on a GPU")
def test_each_has_engines_of_its_own_and_info_their_devices(server: Server) -> None:
    for number in range(3):
        server.log.wait_for(f"engine {number} is ready")
    assert {"engine 0", "engine 1", "engine 2", "batch manager 0", "batch manager 1"} <= set(server.processes())
    assert any("gets the device cuda:0, cuda:1" in line for line in server.log.lines)
    devices = [model["devices"] for model in server.request("GET", "/info").json()["models"]]
    assert devices == [["cpu"], ["cuda:0", "cuda:1"]]
