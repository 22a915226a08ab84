"""A whole server with API keys: who gets in, and that no key can be read anywhere."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import Server, serving

ORIGIN = "https://page.example"
FLAGS = ("--api-key-file", "keys", "--metrics-auth", "--strict-model-name", "--cors-allow-origin", ORIGIN)
MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keys")
    digest = hashlib.sha256(b"hashed-sesame").hexdigest()
    (folder / "keys").write_text(f"team-a:plain-sesame\nteam-b:sha256={digest}\n")
    with serving(*FAKE, *FLAGS, folder=folder, environment={"API_KEY": "first-sesame,second-sesame"}) as running:
        yield running


@pytest.mark.holds("API keys")
@pytest.mark.parametrize("key", ["plain-sesame", "hashed-sesame", "first-sesame", "second-sesame"])
def test_every_key_opens(server: Server, key: str) -> None:
    body = {"input": "hello", "model": MODEL}
    assert server.request("POST", "/v1/embeddings", body, authorization=f"Bearer {key}").status == 200
    assert server.request("GET", "/metrics", x_api_key=key).status == 200


@pytest.mark.parametrize("path", ["/metrics", "/info", "/v1/models", "/openapi.json", "/docs", "/nowhere"])
def test_nothing_else_does(server: Server, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer team-a"}):
        assert server.request("GET", path, **headers).status == 401
    assert server.embed("hello").status == 401


def test_another_name_is_refused_where_names_are_strict(server: Server) -> None:
    headers = {"authorization": "Bearer plain-sesame", "origin": ORIGIN}
    refused = server.request("POST", "/v1/embeddings", {"input": "hello", "model": "gpt"}, **headers)

    assert refused.status == 404
    assert refused.headers["access-control-allow-origin"] == ORIGIN


@pytest.mark.holds("API keys never leak", "API keys")
def test_no_key_can_be_read(server: Server) -> None:
    for pid in (server.process.pid, *server.processes().values()):
        assert b"sesame" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert "sesame" not in "\n".join(server.log.lines)
    assert any("4 API key" in line for line in server.log.lines)
