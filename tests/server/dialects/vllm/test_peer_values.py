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

from engine.types import OutputKind
from tests.server.asking import ask
from tests.server.dialects.vllm.test_peer_assertions import CHAT, CLASSIFY, EMBED, LATE, RANK, RERANK, TEXT
from tests.server.edge import DIMENSIONS, Called, Edge
from tokenizer_pool.messages import TextRefusal, TextRefused

TOKENS: dict[str, Any] = {"outputs": OutputKind.TOKEN_LOGITS, "task": "token-classify", "labels": ["a", "b"]}
TOKENS |= {"num_labels": 2}
ROWS: NDArray[np.float32] = np.random.default_rng(5).standard_normal((3, DIMENSIONS)).astype(np.float32)
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
THREE = {"model": "the-model", "input": [TEXT] * 3}

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


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_the_metadata_of_bytes_says_where_each_row_is(path: str) -> None:
    form = {"encoding_format": "bytes", "embed_dtype": "float16", "endianness": "big"}
    called = ask(path, {**THREE, **form}, rows=ROWS, **EMBED)

    metadata = json.loads(called.headers["metadata"])
    assert {"id", "created", "model", "data", "usage"} <= metadata.keys()
    for index, item in enumerate(metadata["data"]):
        assert (item["index"], item["embed_dtype"], item["endianness"]) == (index, "float16", "big")
        row = decoded(called.body[item["start"] : item["end"]], "float16", "big")
        assert item["shape"] == [DIMENSIONS]
        assert are_close(row, ROWS[index : index + 1])


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_base64_is_the_rows_of_floats(path: str) -> None:
    name = "data" if path == "/pooling" else "embedding"
    floats, coded, default = (
        [item[name] for item in answer(path, {**THREE, **form}, EMBED, rows=ROWS)["data"]]
        for form in ({"encoding_format": "float"}, {"encoding_format": "base64"}, {})
    )

    assert np.array_equal(np.array(floats, np.float32), ROWS)
    assert np.array_equal(decoded(b"".join(map(base64.b64decode, coded)), "float32", "little"), ROWS)
    assert default == floats


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


def test_token_classify_has_a_score_of_each_label_for_each_token() -> None:
    (item,) = answer("/pooling", {"input": TEXT, "task": "token_classify"}, TOKENS)["data"]
    assert np.shape(item["data"]) == (3, 2)


@pytest.mark.parametrize(
    ("model", "task"),
    [
        *((TOKENS, task) for task in ("embed", "token_embed", "plugin")),
        *((LATE, task) for task in ("classify", "token_classify", "plugin")),
    ],
)
def test_a_task_of_another_model_is_refused(model: dict[str, Any], task: str) -> None:
    called = ask("/pooling", {"input": TEXT, "task": task}, **model)
    error = json.loads(called.body)["error"]

    assert (called.status, error["type"]) == (400, "BadRequestError")
    assert error["message"].startswith(f"Unsupported task: {task!r}")


def test_a_label_and_the_probability_of_each() -> None:
    for item in answer("/classify", {"input": [TEXT] * 3}, CLASSIFY)["data"]:
        assert item["label"] in CLASSIFY["labels"]
        assert len(item["probs"]) == item["num_classes"] == 2


@pytest.mark.parametrize(("path", "model"), [("/v1/embeddings", EMBED), ("/classify", CLASSIFY), ("/pooling", EMBED)])
def test_the_name_of_the_model_that_answered(path: str, model: dict[str, Any]) -> None:
    assert answer(path, {"input": TEXT}, model)["model"] == "the-model"


@pytest.mark.parametrize(("path", "model"), [("/v1/embeddings", EMBED), ("/classify", CLASSIFY), ("/pooling", EMBED)])
def test_a_length_that_the_model_does_not_take_is_named(path: str, model: dict[str, Any]) -> None:
    called = ask(path, {"input": TEXT, "truncate_prompt_tokens": 17}, **model)
    assert called.status == 400
    assert "truncate_prompt_tokens" in json.loads(called.body)["error"]["message"]


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
    ],
)
def test_invocations_answers_as_the_models_own_route(body: dict[str, Any], model: dict[str, Any], path: str) -> None:
    own, invoked = (answer(one, body, model) for one in (path, "/invocations"))
    name = "results" if "results" in own else "data"

    assert own.keys() == invoked.keys()
    assert own[name] == invoked[name]


@pytest.mark.parametrize("model", [EMBED, RERANK, LATE])
def test_the_best_document_comes_first_with_its_text(model: dict[str, Any]) -> None:
    results = answer("/rerank", RANK, model)["results"]

    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert all(result["document"]["text"] == RANK["documents"][result["index"]] for result in results)


def test_a_server_of_a_reranker_lists_and_tokenizes_too() -> None:
    assert answer("/tokenize", {"prompt": TEXT}, RERANK)["tokens"] == [97, 98, 99]


# Cohere's route


def embed_v2(**fields: Any) -> Any:
    return answer("/v2/embed", {"texts": [TEXT], "embedding_types": ["float"], **fields}, EMBED, rows=ROWS[:1])


def test_v2_embed_is_the_rows_of_v1_embeddings() -> None:
    texts = {"texts": ["abc", "de", "f"]}
    found = answer("/v2/embed", {**texts, "embedding_types": ["float"]}, EMBED, rows=ROWS)
    expected = answer("/v1/embeddings", {"input": texts["texts"]}, EMBED, rows=ROWS)

    assert found["embeddings"]["float"] == [item["embedding"] for item in expected["data"]]
    assert found["meta"]["billed_units"]["input_tokens"] == expected["usage"]["prompt_tokens"]


def test_v2_embed_has_every_type() -> None:
    found = embed_v2(embedding_types=["float", "binary", "ubinary", "base64"])["embeddings"]

    assert len(found["binary"][0]) == len(found["ubinary"][0]) == DIMENSIONS // 8
    assert np.array_equal(decoded(base64.b64decode(found["base64"][0]), "float32", "little"), ROWS[:1])
    assert np.array_equal(np.array(found["float"], np.float32), ROWS[:1])


def test_what_stands_beside_the_rows_of_v2_embed() -> None:
    found = embed_v2()

    assert isinstance(found["id"], str)
    assert found["texts"] == [TEXT]
    assert found["meta"]["api_version"]["version"] == "2"
    assert found["meta"]["tokens"]["input_tokens"] == 3


@pytest.mark.parametrize("fields", [{}, {"truncate": "END"}, {"truncate": "START"}, {"truncate": "NONE"}])
def test_v2_embed_takes(fields: dict[str, Any]) -> None:
    assert len(embed_v2(**fields)["embeddings"]["float"]) == 1


def refused(body: dict[str, Any], error: Exception | None = None) -> Called:
    def before(edge: Edge) -> None:
        edge.tokenizers.error = error

    return ask("/v2/embed", {"model": "the-model", **body}, before=before, **EMBED)


def test_v2_embed_refuses() -> None:
    too_long = TextRefused(TextRefusal.TOO_LONG, 0, num_tokens=2000, max_tokens=16)

    assert refused({}).status == 400
    assert refused({"texts": [TEXT], "truncate": "NONE"}, too_long).status == 400
    unknown = refused({"texts": [TEXT], "input_type": "nonexistent_type"})
    assert (unknown.status, "input_type" in json.loads(unknown.body)["error"]["message"]) == (400, True)
