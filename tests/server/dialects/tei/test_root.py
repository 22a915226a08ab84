"""POST / and /invocations: the model's task says what they do."""

import json
from typing import Any

import pytest

from engine.types import OutputKind
from tests.server.asking import RAW, ask, tei_error

LOGITS = OutputKind.LOGITS
ONE = {"inputs": "ab"}
LIST = {"inputs": [["ab"]]}  # a text alone is Hugging Face's at POST /


@pytest.mark.holds("Labels, sparse and multi-vector embeddings")
@pytest.mark.parametrize("root", ["/", "/invocations"])
@pytest.mark.parametrize(
    ("path", "body", "outputs", "model"),
    [
        ("/predict", LIST, LOGITS, {"task": "classify", "labels": ["a", "b"], "num_labels": 2}),
        ("/predict", {"inputs": ["a", "b"]}, LOGITS, {"task": "rerank", "labels": ["a"]}),
        ("/rerank", {"query": "a", "texts": ["b", "cd"]}, LOGITS, {"task": "rerank", "labels": ["a"]}),
        ("/predict_tokens", LIST, OutputKind.TOKEN_LOGITS, {"task": "token-classify", "labels": ["a"]}),
        ("/embed_sparse", ONE, OutputKind.SPARSE, {"task": "sparse"}),
        ("/embed_all", ONE, OutputKind.MULTI_VECTOR, {"task": "late-interaction"}),
        ("/embed", ONE, OutputKind.POOLED, {"task": "embed"}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, OutputKind.POOLED, {"task": "embed"}),
        ("/rerank", {"query": "a", "texts": ["b", "cd"]}, OutputKind.POOLED, {"task": "embed"}),
    ],
)
def test_it_is_the_route_for_the_models_task(
    root: str, path: str, body: dict[str, Any], outputs: OutputKind, model: dict[str, Any]
) -> None:
    expected, called = ask(path, body, outputs, **model), ask(root, body, outputs, **model)

    assert called.status == expected.status == 200
    assert json.loads(called.body) == json.loads(expected.body)
    assert called.headers.keys() == expected.headers.keys()
    raw, expected_raw = (ask(each, body, outputs, headers=RAW, **model) for each in (root, path))
    assert raw.body == expected_raw.body


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{}", 422, "Validation"),
        (b'{"inputs":', 400, "Validation"),
        (b'{"inputs":[]}', 400, "Empty"),
        (b'{"x":' + b"[" * 9000, 400, "Validation"),
        (b'{"inputs":"a","x":' + b'{"x":' * 1000 + b"1" + b"}" * 1001, 400, "Validation"),
        (b'{"inputs":"a","model":5}', 422, "Validation"),
        (b" " * 10_001, 413, "Validation"),
    ],
)
@pytest.mark.parametrize("task", ["classify", "rerank", "sparse"])
def test_bad_bodies(task: str, body: bytes, status: int, kind: str) -> None:
    outputs = OutputKind.SPARSE if task == "sparse" else LOGITS
    assert tei_error(ask("/", body, outputs, task=task))[:2] == (status, kind)


# the bodies of vLLM's routes, which its /invocations takes too


def test_parameters_that_would_be_dropped_are_refused() -> None:
    body = {"inputs": "ab", "parameters": {"normalize": False}}
    status, kind, message = tei_error(ask("/", body, OutputKind.POOLED, task="embed"))

    assert (status, kind) == (422, "Validation")
    assert "parameters.normalize" in message
    assert ask("/", {"inputs": "ab", "parameters": {}}, OutputKind.POOLED, task="embed").status == 200
