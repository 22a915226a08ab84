"""What vLLM's own tests assert of numbers, of bytes, of routes beside each other and of Cohere's route.

test_peer_assertions.py has what they assert of the shape of single answers.
"""

import base64
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.server.asking import ask
from tests.server.dialects.vllm.test_peer_assertions import CHAT, CLASSIFY, EMBED, LATE, RANK, RERANK, TEXT
from tests.server.edge import DIMENSIONS

ROWS: NDArray[np.float32] = np.random.default_rng(5).standard_normal((3, DIMENSIONS)).astype(np.float32)
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
THREE = {"model": "the-model", "input": [TEXT, f"{TEXT}!", f"{TEXT}?"]}

pytestmark = pytest.mark.holds("vLLM's own routes")


def answer(path: str, body: dict[str, Any], model: dict[str, Any], **others: Any) -> Any:
    called = ask(path, {"model": "the-model", **body}, **{**model, **others})
    assert called.status == 200, called.body
    return json.loads(called.body)


def decoded(raw: bytes, dtype: str, endianness: str) -> NDArray[np.float32]:
    """As vLLM's clients read rows."""
    numbers = np.frombuffer(raw, f"i{DTYPES[dtype].itemsize}")
    if endianness == "big":
        numbers = numbers.byteswap()
    return torch.from_numpy(numbers.copy()).view(DTYPES[dtype]).float().numpy().reshape(-1, DIMENSIONS)


def are_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    """By cosine, as vLLM compares them."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    return found.shape == expected.shape and bool(np.all((found * expected).sum(axis=1) / lengths > 0.99))


# forms of rows


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("endianness", ["native", "little", "big"])
@pytest.mark.parametrize("encoding", ["base64", "bytes", "bytes_only"])
def test_rows_of_every_type_in_either_order_of_bytes(path: str, dtype: str, endianness: str, encoding: str) -> None:
    form = {"encoding_format": encoding, "embed_dtype": dtype, "endianness": endianness}
    called = ask(path, {**THREE, **form}, rows=ROWS, **EMBED)

    if encoding == "base64":
        items = json.loads(called.body)["data"]
        raw = b"".join(base64.b64decode(item["data" if path == "/pooling" else "embedding"]) for item in items)
    else:
        raw = called.body
        assert called.headers["content-type"] == "application/octet-stream"
        assert ("metadata" in called.headers) == (encoding == "bytes")
    assert are_close(decoded(raw, dtype, endianness), ROWS)


# activations


def outputs(path: str, body: dict[str, Any], model: dict[str, Any]) -> list[NDArray[np.float64]]:
    """With the default, with `use_activation`, and without."""
    found = []
    for wanted in (None, True, False):
        content = answer(path, {**body, "use_activation": wanted}, model)
        items = content["results"] if "results" in content else content["data"]
        names = ("probs", "relevance_score", "score", "embedding", "data")
        found.append(np.array([next(item[name] for name in names if name in item) for item in items]))
    return found


@pytest.mark.parametrize("path", ["/classify", "/pooling"])
def test_softmax_is_the_default_of_labels(path: str) -> None:
    default, with_it, without = outputs(path, {"input": TEXT}, {**CLASSIFY, "rows": [[0.5, 2.0]]})

    assert np.allclose(default, with_it)
    assert np.allclose(without, [[0.5, 2.0]])
    assert np.allclose(with_it, np.exp(without) / np.exp(without).sum())


@pytest.mark.parametrize(
    ("path", "body"), [("/rerank", RANK), ("/score", {"queries": "abc", "documents": ["de", "fgh", "i"]})]
)
def test_sigmoid_is_the_default_of_scores(path: str, body: dict[str, Any]) -> None:
    model = {**RERANK, "rows": [[0.5], [-2.0], [1.0]]}
    default, with_it, without = outputs(path, body, model)

    assert np.allclose(default, with_it)
    assert sorted(without) == [-2.0, 0.5, 1.0]
    assert np.allclose(with_it, 1 / (1 + np.exp(-without)))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_rows_are_scaled_to_length_1_with_activation(path: str) -> None:
    _, with_it, without = outputs(path, {"input": TEXT}, {**EMBED, "rows": ROWS[:1]})

    assert np.allclose(without, ROWS[:1])
    assert np.allclose(with_it, ROWS[:1] / np.linalg.norm(ROWS[0]), atol=1e-6)


# tasks and labels


@pytest.mark.parametrize(
    ("body", "model", "path"),
    [
        ({"input": TEXT}, EMBED, "/v1/embeddings"),
        ({"messages": CHAT}, EMBED, "/v1/embeddings"),
        ({"input": TEXT}, CLASSIFY, "/classify"),
        ({"messages": CHAT}, CLASSIFY, "/classify"),
        ({"input": TEXT}, LATE, "/pooling"),
        ({"messages": CHAT}, LATE, "/pooling"),
        (RANK, RERANK, "/rerank"),
        (RANK, EMBED, "/rerank"),
        ({"queries": "a", "documents": ["b"]}, EMBED, "/score"),
        ({"text_1": "a", "text_2": ["b"]}, RERANK, "/score"),
    ],
)
def test_invocations_answers_as_the_models_own_route(body: dict[str, Any], model: dict[str, Any], path: str) -> None:
    own, invoked = (answer(one, body, model) for one in (path, "/invocations"))
    name = "results" if "results" in own else "data"

    assert own.keys() == invoked.keys()
    assert own[name] == invoked[name]


def test_a_server_of_a_reranker_lists_and_tokenizes_too() -> None:
    assert answer("/tokenize", {"prompt": TEXT}, RERANK)["tokens"] == [97, 98, 99]


# Cohere's route


def test_v2_embed_is_the_rows_of_v1_embeddings() -> None:
    texts = {"texts": ["abc", "de", "f"]}
    found = answer("/v2/embed", {**texts, "embedding_types": ["float"]}, EMBED, rows=ROWS)
    expected = answer("/v1/embeddings", {"input": texts["texts"]}, EMBED, rows=ROWS)

    assert found["embeddings"]["float"] == [item["embedding"] for item in expected["data"]]
    assert found["meta"]["billed_units"]["input_tokens"] == expected["usage"]["prompt_tokens"]
