"""A whole server with two LoRA adapters of a model: each answers with its own rows, in batches with the others'."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from embedline.client.preference import CancellationToken
from engine import fake
from server.features.backfill.servers import Servers
from server.features.grpc import tei_pb2
from tests.engine.folder_files import write
from tests.server_e2e.expected import FAKE, SPREAD, ids_of, minilm, table
from tests.server_e2e.running import PATIENCE, Server, serving

pytestmark = pytest.mark.holds("Adapters")

NUMBERS = {"base": 0, "law": 1, "mail": 2}
TEXT = "the ferry leaves at seven"
NAMES = [name for _ in range(20) for name in NUMBERS]


def row(name: str, text: str = TEXT) -> NDArray[np.float32]:
    """The fake engine's row of a text with the adapter of this name."""
    ids, number = np.array(ids_of(text), np.int32), NUMBERS[name]
    others = bytes(len(ids)) + np.int32(number).tobytes() if number else b""
    return fake.row(table(), ids.tobytes(), others)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("law", "mail"):
        write(folder / name / "adapter_config.json", {"peft_type": "LORA", "r": len(name)})
    loras = [word for name in ("law", "mail") for word in ("--lora", f"{name}={name}")]
    model = ("--model-id", str(minilm()), "--served-model-name", "base")
    with serving(*model, *FAKE, *SPREAD, *loras, "--grpc-port", "0", folder=folder) as running:
        yield running


# the path, the field of the texts, and where the rows are in the answer
ROUTES: dict[str, tuple[str, Any]] = {
    "/v1/embeddings": ("input", lambda answer: [one["embedding"] for one in answer["data"]]),
    "/embed": ("inputs", lambda answer: answer),
    "/embed_all": ("inputs", lambda answer: [rows[0] for rows in answer]),
    "/v2/embed": ("texts", lambda answer: answer["embeddings"]["float"]),
    "/api/embed": ("input", lambda answer: answer["embeddings"]),
    "/pooling": ("input", lambda answer: [one["data"] for one in answer["data"]]),
    "/vectors": ("texts", lambda answer: answer["vectors"]),
}


def rows(server: Server, path: str, **fields: Any) -> NDArray[np.float32]:
    field, found = ROUTES[path]
    reply = server.request("POST", path, {field: [TEXT, "another"], **fields})
    assert reply.status == 200, reply.body
    return np.array(found(reply.json()), np.float32)


@pytest.mark.parametrize("path", ROUTES)
def test_each_name_answers_with_its_own_rows(server: Server, path: str) -> None:
    of_base, of_law, of_mail = (rows(server, path, model=name) for name in NUMBERS)
    assert not np.allclose(of_base, of_law)
    assert not np.allclose(of_law, of_mail)
    for fields in ({"model": "base:law"}, {"lora_path": "law"}, {"lora_path": ["law", "law"], "model": "base"}):
        assert np.array_equal(rows(server, path, **fields), of_law)
    assert np.array_equal(rows(server, path), of_base)


def test_texts_of_several_adapters_in_one_batch(server: Server) -> None:
    def ask(name: str) -> NDArray[np.float32]:
        reply = server.embed(TEXT, model=name, encoding_format="bytes")
        return np.frombuffer(reply.body, "<f4")

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, NAMES))
    for name, one in zip(NAMES, found, strict=True):
        assert np.array_equal(one, row(name)), name


def test_paths_that_name_it(server: Server) -> None:
    for name in ("law", "base:law"):
        reply = server.request("POST", f"/openai/deployments/{name}/embeddings", {"input": TEXT, "model": "ignored"})
        assert reply.json()["model"] == "law"
        assert np.array_equal(np.array(reply.json()["data"][0]["embedding"], np.float32), row("law"))


def test_over_grpc(server: Server) -> None:
    address = server.log.wait_for(r"over gRPC on (\S+)$")[0][1]

    async def ask(name: str) -> list[float]:
        async with grpc.aio.insecure_channel(address) as channel:
            method = channel.unary_unary(
                "/tei.v1.Embed/Embed", tei_pb2.EmbedRequest.SerializeToString, tei_pb2.EmbedResponse.FromString
            )
            message = tei_pb2.EmbedRequest(inputs=TEXT, normalize=False)
            answer = await method(message, metadata=(("x-embedline-model", name),), timeout=PATIENCE)
            return list(answer.embeddings)

    for name in NUMBERS:
        assert asyncio.run(ask(name)) == row(name).tolist()


def test_they_are_listed_with_the_model_that_they_are_of(server: Server) -> None:
    """In vLLM's words: the adapter's folder is its root, and its base its parent."""
    listed = {one["id"]: one for one in server.request("GET", "/v1/models").json()["data"]}
    assert {name: (one["parent"], one["root"]) for name, one in listed.items()} == {
        "base": (None, str(minilm())),
        "law": ("base", "law"),
        "mail": ("base", "mail"),
    }
    assert all(one["ready"] for one in listed.values())
    assert len({one["fingerprint"] for one in listed.values()}) == 3
    assert server.request("GET", "/v1/models/base:law").json()["id"] == "law"
    assert server.request("GET", "/v1/models/base:post").status == 404
    told = {one["info"]["name"]: one for one in server.request("GET", "/info").json()["models"]}
    assert told["base"]["loras"] == ["law", "mail"]
    assert [told["law"]["parent"], told["law"]["fingerprint"]["id"]] == ["base", listed["law"]["fingerprint"]]
    tags = {one["name"]: one["details"]["parent_model"] for one in server.request("GET", "/api/tags").json()["models"]}
    assert tags == {"base": "", "law": "base", "mail": "base"}
    assert server.request("POST", "/api/show", {"model": "law:latest"}).json()["details"]["parent_model"] == "base"
    for path in ("/readyz", "/load", "/health"):
        assert [server.request("GET", f"{path}?model={name}").status for name in ("law", "post")] == [200, 404]


def test_metrics_have_the_models_name_alone(server: Server) -> None:
    assert server.embed("counted", model="mail").status == 200
    page = server.request("GET", "/metrics").body.decode()
    assert 'embedline_inputs_total{model="base"}' in page
    assert '"mail"' not in page


def test_another_name_is_refused(server: Server) -> None:
    for fields in ({"model": "any"}, {"model": "base:post"}, {"lora_path": "post"}):
        assert server.request("POST", "/v1/embeddings", {"input": TEXT, **fields}).status == 404
    assert server.request("POST", "/v1/embeddings", {"input": TEXT, "model": ""}).json()["model"] == "base"


def test_a_backfill_with_an_adapter_knows_its_fingerprint(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}"
    listed = {one["id"]: one["fingerprint"] for one in server.request("GET", "/v1/models").json()["data"]}
    with Servers([url], None, model="law", ask={}, token=CancellationToken()) as servers:
        assert servers.described().model["id"] == listed["law"]
        (slice_,) = servers.embed([TEXT])
        assert np.array_equal(slice_.embeddings[0], row("law"))
