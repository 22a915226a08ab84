"""What GET /info and GET /v1/models say of models that are for something else than embeddings."""

import json
from typing import Any

import pytest

from engine.types import OutputKind
from tests.server.edge import answered, state_with


def get(path: str, outputs: OutputKind, **model: Any) -> Any:
    return json.loads(answered("GET", path, loaded=state_with(outputs, **model)).body)


@pytest.mark.parametrize(
    ("task", "outputs", "expected"),
    [
        ("embed", OutputKind.POOLED, {"embedding": {"pooling": "last_token"}}),
        ("sparse", OutputKind.SPARSE, {"embedding": {"pooling": "splade"}}),
        ("late-interaction", OutputKind.MULTI_VECTOR, {"embedding": {"pooling": "last_token"}}),
        ("rerank", OutputKind.LOGITS, {"reranker": {"id2label": {}, "label2id": {}}}),
    ],
)
def test_info_in_teis_words(task: str, outputs: OutputKind, expected: dict[str, Any]) -> None:
    info = get("/info", outputs, task=task)

    assert info["model_type"] == expected
    assert (info["task"], info["models"][0]["task"]) == (task, task)


@pytest.mark.parametrize("task", ["classify", "token-classify"])
def test_info_has_the_labels(task: str) -> None:
    info = get("/info", OutputKind.LOGITS, task=task, labels=["no", "yes"], activation="softmax")

    assert info["model_type"] == {"classifier": {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}}
    assert (info["labels"], info["outputs"]) == (["no", "yes"], ["logits"])
    assert info["models"][0]["activation"] == "softmax"
    assert info["prompts"] == {"query": "Q: "}


def test_models_have_facts() -> None:
    outputs = OutputKind.POOLED | OutputKind.TOKENS | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
    (card,) = get("/v1/models", outputs, task="embed")["data"]

    assert card == {
        "id": "the-model",
        "object": "model",
        "created": 7,
        "owned_by": "embedline",
        "root": "somebody/the-model",
        "parent": None,
        "permission": [],
        "ready": True,
        "fingerprint": "0123456789abcdef",
        "dimensions": 8,
        "max_dimensions": 8,
        "max_model_len": 16,
        "max_input_length": 16,
        "tasks": ["embed", "sparse", "late-interaction"],
        "outputs": ["pooled", "tokens", "sparse", "multi_vector"],
        "prompts": ["query"],
        "default_prompt": "",
        "input_types": {
            "query": {"prompt_name": "query", "prompt": "Q: "},
            "document": {"prompt_name": None, "prompt": ""},
        },
        "dtype": "float32",
        "backend": "fake",
        "capabilities": ["embed", "sparse", "late-interaction"],
        "stats": {"queue_fraction": 0.0, "queue_absolute": 0, "results_pending": 0, "batch_size": 64},
    }


def test_info_says_which_prompt_an_input_type_chooses() -> None:
    prompts = {"corpus": "C: ", "Retrieval-query": "R: ", "other": "O: "}
    info = get("/info", OutputKind.POOLED, prompts=prompts, default_prompt="O: ")

    for known in (info, info["models"][0]):
        assert (known["prompts"], known["default_prompt"]) == (prompts, "O: ")
        assert known["input_types"] == {
            "query": {"prompt_name": "Retrieval-query", "prompt": "R: "},
            "document": {"prompt_name": "corpus", "prompt": "C: "},
        }


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"prompts": {}, "default_prompt": "D: "}, {}),
        ({"task": "rerank"}, {}),
        ({"prompts": {"STS": "S: "}, "default_prompt": "D: "}, {"prompt_name": None, "prompt": "D: "}),
    ],
    ids=["no prompts", "no input_type", "none for a side"],
)
def test_what_an_input_type_does_not_choose(model: dict[str, Any], told: dict[str, Any]) -> None:
    (card,) = get("/v1/models", OutputKind.POOLED, **model)["data"]

    assert card["input_types"] == ({"query": told, "document": told} if told else {})


def test_each_task_is_named_once() -> None:
    assert get("/v1/models", OutputKind.SPARSE, task="sparse")["data"][0]["tasks"] == ["sparse"]


def test_a_models_default_is_told_apart_from_all_its_dimensions() -> None:
    (card,) = get("/v1/models", OutputKind.POOLED, truncate_dim=3)["data"]
    (told,) = get("/info", OutputKind.POOLED, truncate_dim=3)["models"]
    page = get("/openapi.json", OutputKind.POOLED, truncate_dim=3)["components"]["schemas"]["EmbedBody"]["properties"]
    (number,) = (part for part in page["dimensions"]["anyOf"] if part["type"] == "integer")

    assert (card["dimensions"], card["max_dimensions"]) == (3, 8)
    assert (told["truncate_dim"], told["info"]["dimensions"]) == (3, 8)
    assert (number["default"], number["maximum"]) == (3, 8)


def test_a_truncate_dim_that_cuts_nothing_is_no_default() -> None:
    (card,) = get("/v1/models", OutputKind.POOLED, truncate_dim=9)["data"]
    assert (card["dimensions"], card["max_dimensions"]) == (8, 8)
