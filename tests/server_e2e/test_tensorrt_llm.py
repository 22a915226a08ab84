"""The TensorRT-LLM engine through a whole server, on stand-ins for the library and the driver.

Answers are those of transformers. A GPU that fails costs a restart of the engine, and nobody is told a wrong row.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.model import model_folder
from tests.engine.sentence_models import text_of, words
from tests.engine.tensorrt_llm.machine import machine
from tests.engine.tensorrt_llm.models import Model, answering, embedding, scoring
from tests.engine.tiny_models import arbitrary
from tests.server_e2e.running import PATIENCE, Reply, Server, serving
from tests.server_e2e.test_refusals_at_start import refusal

QUERY, *SEQUENCES = arbitrary((4, 17, 1, 30, 9), first=10)
TEXTS = [text_of(sequence) for sequence in SEQUENCES]
NOT_FINITE = 3  # a token that spoils a row where it is there twice in succession
TOLERANCE = 1e-5
pytestmark = pytest.mark.full  # in one process: tests/engine/tensorrt_llm
RESTARTS = ("--engine-restart-grace", "60")  # a request waits for the next engine


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return embedding("llama", tmp_path_factory.mktemp("embedder") / "m", "mean", is_causal=False)


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Once this file is there, the GPU fails at the next batch, and with that it is gone."""
    return tmp_path_factory.mktemp("trap") / "file"


@pytest.fixture(scope="module")
def server(embedder: Model, trap: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    faults = (f"device_error@file:{trap}", f"nan@twice:{NOT_FINITE}")
    here = machine(folder / "machine", *faults)
    flags = (*here.flags, *RESTARTS, "--model-id", str(embedder.folder), "--pooling", "mean")
    with serving(*flags, folder=folder, environment=here.environment) as running:
        yield running


def rows_of(reply: Reply) -> NDArray[np.float32]:
    assert reply.status == 200, reply.body
    return np.frombuffer(reply.body, "<f4").reshape(len(TEXTS), -1)


def ask(server: Server) -> Reply:
    return server.embed(TEXTS, encoding_format="bytes")


def test_embeddings_are_transformers(server: Server, embedder: Model) -> None:
    assert np.abs(rows_of(ask(server)) - embedder.expected(SEQUENCES)).max() <= TOLERANCE
    (model,) = server.request("GET", "/info").json()["models"]
    assert (model["info"]["engine"], model["info"]["dtype"]) == ("tensorrt-llm", "bfloat16")
    assert model["devices"] == ["cuda:0"]


def test_a_row_that_is_not_finite_is_refused_alone(server: Server) -> None:
    reply = server.embed([TEXTS[0], text_of([9, NOT_FINITE, NOT_FINITE, 8]), TEXTS[1]])
    assert reply.status == 500
    assert reply.json()["error"]["param"] == "input[1]"


@pytest.mark.holds("TensorRT-LLM")
def test_a_gpu_that_fails_while_serving(server: Server, embedder: Model, trap: Path) -> None:
    """What was in the engine waits for the next one, or is told to come again: no error is handed out fast."""
    expected, seen = embedder.expected(SEQUENCES), len(server.log.lines)
    trap.touch()
    replies: list[Reply] = []
    clients = [threading.Thread(target=lambda: replies.append(ask(server))) for _ in range(6)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(PATIENCE)

    assert not trap.exists()
    assert len(replies) == len(clients)
    assert {reply.status for reply in replies} <= {200, 503}
    for reply in replies:
        if reply.status == 200:
            assert np.abs(rows_of(reply) - expected).max() <= TOLERANCE
        else:
            assert int(reply.headers["retry-after"]) >= 1
    _, seen = server.log.wait_for("engine 0: .*illegal memory access", after=seen)
    server.log.wait_for("engine 0 is ready", after=seen)
    assert np.abs(rows_of(ask(server)) - expected).max() <= TOLERANCE


@pytest.mark.holds("TensorRT-LLM")
def test_a_gpu_that_does_not_come_back(embedder: Model, tmp_path: Path) -> None:
    """The next engine finds it lost too: requests are told to come again, and the log has the reason."""
    lost = tmp_path / "lost"
    here = machine(tmp_path / "machine", f"device_error@while:{lost}")
    flags = (*here.flags, "--engine-restart-grace", "0.2", "--model-id", str(embedder.folder), "--pooling", "mean")
    with serving(*flags, folder=tmp_path, environment=here.environment) as running:
        assert ask(running).status == 200
        lost.touch()
        reply = ask(running)
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        running.log.wait_for("cuda:0: tensorrt_llm 1.4.0rc1 can't load the model .*illegal memory access")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return answering("qwen3", tmp_path_factory.mktemp("reranker") / "m", max_position_embeddings=128)


def test_a_generative_reranker(reranker: Model, tmp_path: Path) -> None:
    here = machine(tmp_path / "machine")
    template = model_folder.read(reranker.folder, template="Qwen3-Reranker").template
    assert template is not None
    pairs = []
    for text in TEXTS:
        filling = {"query": text_of(QUERY), "document": text, "instruction": template.instruction}
        filled = [part.format(**filling) if "{" in part else part for part in template.parts]
        pairs.append([token for part in filled for token in words().encode(part, add_special_tokens=False).ids])
    flags = (*here.flags, "--model-id", str(reranker.folder), "--template", "Qwen3-Reranker", "--quantization", "none")
    with serving(*flags, folder=tmp_path, environment=here.environment) as running:
        body = {"query": text_of(QUERY), "texts": TEXTS, "raw_scores": True}
        reply = running.request("POST", "/rerank", body, accept="application/octet-stream")
    assert reply.status == 200, reply.body
    found = np.frombuffer(reply.body, "<f4")
    assert np.abs(found - reranker.expected(pairs)[:, 0]).max() <= TOLERANCE * 10


def test_a_classifier_with_graphs(tmp_path: Path) -> None:
    classifier = scoring("mistral", tmp_path / "m")
    here = machine(tmp_path / "machine")
    flags = (*here.flags, "--model-id", str(classifier.folder), "--tensorrt-llm-cuda-graphs")
    with serving(*flags, folder=tmp_path, environment=here.environment) as running:
        body = {"inputs": [[text] for text in TEXTS], "raw_scores": True}
        reply = running.request("POST", "/predict", body, accept="application/octet-stream")
    assert reply.status == 200, reply.body
    found = np.frombuffer(reply.body, "<f4").reshape(len(TEXTS), -1)
    assert np.abs(found - classifier.expected(SEQUENCES)).max() <= TOLERANCE * 10


@pytest.mark.holds("TensorRT-LLM")
def test_a_library_that_is_too_old_is_said_in_one_line(embedder: Model, tmp_path: Path) -> None:
    """What else is refused: tests/engine/tensorrt_llm/planning."""
    here = machine(tmp_path / "machine", version="1.2.1")
    flags = (*here.flags, "--model-id", str(embedder.folder), "--pooling", "mean")
    told = refusal(*flags, folder=tmp_path, environment=here.environment)
    assert "tensorrt_llm 1.2.1 is too old: LLM.encode came to the 1.3.0 release candidates" in told
