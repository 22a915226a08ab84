"""A static embedding model through a whole server, as sentence-transformers computes it: without special tokens."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers.processors import TemplateProcessing

from embedline import Client
from server.features.grpc import tei_pb2
from tests.engine.sentence_models import words
from tests.engine.tiny_models import VOCAB_SIZE
from tests.server_e2e.running import Server, serving

TEXTS = ["w5 w9 w5", "w7", "w11 w4 w90"]
# how each API is asked for the rows of TEXTS: its path, a body, and where they are in the answer
WAYS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "Voyage": (
        *("/v1/embeddings", {"input": TEXTS, "model": "m", "input_type": None, "encoding_format": "base64"}),
        lambda answer: [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]],
    ),
    "TEI": ("/embed", {"inputs": TEXTS}, lambda rows: rows),
    "Cohere": (
        *("/v2/embed", {"texts": TEXTS, "model": "m", "embedding_types": ["float"]}),
        lambda answer: answer["embeddings"]["float"],
    ),
    "Ollama": ("/api/embed", {"input": TEXTS, "model": "m"}, lambda answer: answer["embeddings"]),
    "vLLM": (
        *("/pooling", {"input": TEXTS, "model": "m", "task": "embed"}),
        lambda answer: [item["data"] for item in answer["data"]],
    ),
    "Hugging Face": ("/", {"inputs": TEXTS}, lambda rows: rows),
}


@pytest.mark.holds("What a model is for")
def test_rows_are_the_librarys(tmp_path: Path) -> None:
    tokenizer = words()
    tokenizer.post_processor = TemplateProcessing(single="w2 $A w3", special_tokens=[("w2", 2), ("w3", 3)])
    table = torch.rand((VOCAB_SIZE, 24), generator=torch.Generator().manual_seed(5)).numpy()
    modules: list[torch.nn.Module] = [StaticEmbedding(tokenizer, embedding_weights=table), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", truncate_dim=10)
    model.save(str(tmp_path / "model"))
    expected = model.encode(TEXTS, normalize_embeddings=True)
    assert expected.shape == (3, 10)

    with serving("--model-id", str(tmp_path / "model"), "--grpc-port", "0", folder=tmp_path) as server:
        reply = server.embed(TEXTS)
        whole = server.embed(TEXTS, dimensions=24)
        blank = server.embed(["w5", " "])
        server.log.wait_for("runs on the engine static, device cpu")
        check_every_way(server, expected)

    for answer, rows in ((reply, expected), (whole, model.encode(TEXTS, truncate_dim=24))):
        found = np.array([item["embedding"] for item in answer.json()["data"]], np.float32)
        np.testing.assert_allclose(found, rows, atol=1e-6)
    assert reply.json()["usage"]["prompt_tokens"] == 7
    assert (blank.status, blank.json()["error"]["param"]) == (400, "input[1]")  # no special token stands in for it


def check_every_way(server: Server, expected: Any) -> None:
    """Each API cuts rows to the model's `truncate_dim`, of which the rows were made."""
    found = {}
    for name, (path, body, rows_in) in WAYS.items():
        reply = server.request("POST", path, body)
        assert reply.status == 200, (name, reply.body)
        found[name] = rows_in(reply.json())
    found["raw"] = np.frombuffer(server.embed(TEXTS, encoding_format="bytes").body, "<f4").reshape(3, -1)
    found["Weaviate"] = [server.request("POST", "/vectors", {"text": text}).json()["vector"] for text in TEXTS]
    with Client(f"http://127.0.0.1:{server.port}") as client:
        found["our client"] = client.embed(TEXTS).numpy()
    address = server.log.wait_for(r"over gRPC on (\S+)$")[0][1]
    with grpc.insecure_channel(address) as channel:
        embed = channel.unary_unary(
            "/tei.v1.Embed/Embed", tei_pb2.EmbedRequest.SerializeToString, tei_pb2.EmbedResponse.FromString
        )
        found["gRPC"] = [embed(tei_pb2.EmbedRequest(inputs=text, normalize=True)).embeddings for text in TEXTS]
    for name, rows in found.items():
        np.testing.assert_allclose(rows, expected, atol=1e-6, err_msg=name)
    pair = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    cosines = server.request("POST", "/similarity", {"inputs": pair}).json()
    np.testing.assert_allclose(cosines, expected[1:] @ expected[0], atol=1e-6)
