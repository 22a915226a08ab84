"""What Infinity's own end-to-end tests assert of its API for texts (libs/infinity_emb/tests/end_to_end there).

Left out, with the reasons in docs/api/infinity.md: its 422, its limit of characters, images and sound, its schema.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.types import OutputKind
from tests.server.edge import Called, answered, ready_state, state_with

Check = Callable[[Any], bool]

FIRST, SECOND = "dummy-number-1", "dummy-number-2"
SENTENCES = ["This is a test sentence.", "This is another test sentence."]
LONG = "%_" * 4096 * 15
CLASSIFIER: dict[str, Any] = {"outputs": OutputKind.LOGITS, "task": "classify", "labels": ["joy", "anger"]}
CLASSIFIER |= {"num_labels": 2, "activation": "softmax"}
RERANKER: dict[str, Any] = {"outputs": OutputKind.LOGITS, "task": "rerank", "labels": ["yes"], "activation": "sigmoid"}
QUERY, BEST = "?", "Paris"  # the longest document gets the best score
DOCUMENTS = ["moon", "UK", BEST, "fry"]
RANK = {"query": QUERY, "documents": DOCUMENTS}


def two_models() -> Any:
    loaded = ready_state()
    (first,) = loaded["models"]
    first["info"]["name"] = FIRST
    second = {**first, "index": 1, "info": {**first["info"], "name": SECOND}}
    return {**loaded, "names": [FIRST, SECOND], "models": [first, second]}


def ask(method: str, path: str, body: Any = None, model: dict[str, Any] | None = None, **how: Any) -> Called:
    """By an edge with two models that embed, or with one for another task."""
    how |= {"loaded": two_models() if model is None else state_with(**model), "max_bytes": 1_000_000}
    num_labels = (model or {}).get("num_labels", 1)
    how["before"] = lambda edge: setattr(edge.managers, "num_labels", num_labels)
    return answered(method, path, body or b"", has_documents_in_objects=False, **how)


def cards(*names: str) -> Check:
    """Of these models in this order, each with numbers of its queue."""
    return lambda answer: (
        [card["id"] for card in answer["data"]] == list(names)
        and all(isinstance(card["stats"], dict) for card in answer["data"])
    )


def rows_of(texts: list[str], *, width: int = 8) -> Check:
    """A row for each, whose first number is how long the text is, as the models for tests give it here and there."""
    return lambda answer: (
        len(answer["data"]) == len(texts)
        and [row["embedding"][0] for row in answer["data"]] == [len(text) for text in texts]
        and all(len(row["embedding"]) == width and row["object"] == "embedding" for row in answer["data"])
    )


def best_first(top_n: int, *, has_documents: bool) -> Check:
    return lambda answer: (
        len(answer["results"]) == min(top_n, 3)
        and answer["results"][0]["relevance_score"] == max(one["relevance_score"] for one in answer["results"])
        and answer["results"][0].get("document") == (BEST if has_documents else None)
    )


def embeddings(model: str = FIRST, **fields: Any) -> dict[str, Any]:
    return {"model": model, **fields}


ROWS: list[tuple[str, str, Any, dict[str, Any] | None, Check]] = [
    ("GET", "/models", None, None, cards(FIRST, SECOND)),
    ("GET", "/health", None, None, lambda answer: "unix" in answer),
    *[
        ("POST", "/embeddings", embeddings(name, input=LONG), None, lambda answer, name=name: answer["model"] == name)
        for name in (FIRST, SECOND)
    ],
    ("POST", "/embeddings", embeddings(input=SENTENCES[:1]), None, rows_of(SENTENCES[:1])),
    ("POST", "/embeddings", embeddings(input=SENTENCES), None, rows_of(SENTENCES)),
    ("POST", "/embeddings", embeddings(SECOND, input=SENTENCES[0]), None, rows_of(SENTENCES[:1])),
    ("POST", "/embeddings", embeddings(input=SENTENCES[:1], dimensions=4), None, rows_of(SENTENCES[:1], width=4)),
    ("POST", "/embeddings", embeddings(input=SENTENCES, dimensions=4), None, rows_of(SENTENCES, width=4)),
    ("POST", "/embeddings", embeddings(input=SENTENCES, dimensions=0), None, rows_of(SENTENCES)),
    ("POST", "/embeddings", embeddings(input=SENTENCES, modality="text"), None, rows_of(SENTENCES)),
    ("POST", "/embeddings", embeddings(input=SENTENCES), None, lambda answer: {"usage", "id"} <= answer.keys()),
    ("GET", "/models", None, CLASSIFIER, cards("the-model")),
    ("GET", "/models", None, CLASSIFIER, lambda answer: "classify" in answer["data"][0]["capabilities"]),
    ("POST", "/classify", {"input": SENTENCES}, CLASSIFIER, lambda answer: {"model", "usage"} <= answer.keys()),
    (
        "POST",
        "/classify",
        {"input": SENTENCES, "raw_scores": False},
        CLASSIFIER,
        lambda answer: [{one["label"] for one in text} for text in answer["data"]] == [{"joy", "anger"}] * 2,
    ),
    ("GET", "/models", None, RERANKER, cards("the-model")),
    ("GET", "/models", None, RERANKER, lambda answer: "rerank" in answer["data"][0]["capabilities"]),
    ("POST", "/rerank", RANK, RERANKER, lambda answer: {"model", "usage"} <= answer.keys()),
    (
        "POST",
        "/rerank",
        RANK,
        RERANKER,
        lambda answer: sorted(one["index"] for one in answer["results"]) == list(range(len(DOCUMENTS))),
    ),
    *[
        (
            "POST",
            "/rerank",
            {"query": QUERY, "documents": documents, "top_n": top_n, "return_documents": has_documents},
            RERANKER,
            best_first(top_n, has_documents=has_documents),
        )
        for documents in (DOCUMENTS[:3], DOCUMENTS[2:0:-1] + DOCUMENTS[:1])
        for top_n in (1, 2, 8000)
        for has_documents in (True, False)
    ],
]
REFUSED: list[tuple[str, Any, dict[str, Any] | None]] = [
    ("/embeddings", embeddings(input=[]), None),
    ("/embeddings", embeddings("another", input="a"), None),
    ("/embeddings", embeddings(input="https://example.org/cat.png", modality="image"), None),
    ("/embeddings_image", embeddings(input=[]), None),
    ("/classify", embeddings(input=SENTENCES), None),
    ("/rerank", {**RANK, "top_n": -1}, RERANKER),
    ("/embeddings", {"input": DOCUMENTS}, RERANKER),
    ("/embeddings", {"input": DOCUMENTS}, CLASSIFIER),
    ("/rerank", RANK, CLASSIFIER),
]


@pytest.mark.holds("Infinity's routes")
@pytest.mark.parametrize(("method", "path", "body", "model", "check"), ROWS)
def test_it_is_as_infinity_asserts(
    method: str, path: str, body: Any, model: dict[str, Any] | None, check: Check
) -> None:
    called = ask(method, path, body, model)

    assert called.status == 200
    assert check(json.loads(called.body))


@pytest.mark.holds("Infinity's routes")
@pytest.mark.parametrize(("path", "body", "model"), REFUSED)
def test_it_refuses_what_infinity_refuses(path: str, body: Any, model: dict[str, Any] | None) -> None:
    assert ask("POST", path, body, model).status in (400, 404)


@pytest.mark.holds("Infinity's routes")
@pytest.mark.parametrize("path", ["/models", "/health", "/embeddings", "/rerank", "/classify"])
def test_every_route_is_below_the_prefix(path: str) -> None:
    is_get = path in ("/models", "/health")
    body = None if is_get else RANK if path == "/rerank" else {"input": "a"}
    model = None if is_get else {"/rerank": RERANKER, "/classify": CLASSIFIER}.get(path, {"outputs": OutputKind.POOLED})

    assert ask("GET" if is_get else "POST", f"/v1_infinity{path}", body, model, url_prefix="/v1_infinity").status == 200
