"""The OpenAPI page and the server agree on bodies: what the one allows the other takes, and nothing else.

tests/clients/test_openapi_page.py tries thousands of bodies; here is one for each rule.
"""

import asyncio
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.server.edge import Edge, call, state_with_everything
from tests.server.http.routes.test_openapi import fetched

EMBEDDINGS, SIDES = {"input": "a"}, {"source_sentence": "a", "sentences": ["b"]}
TEXT = {"type": "text", "text": "a"}
INPUTS = {"inputs": "a"}
RANK = {"query": "a", "documents": ["b"]}


def each(path: str, field: str, *values: Any) -> list[tuple[str, dict[str, Any]]]:
    """A body for each value of its one field."""
    return [(path, {field: value}) for value in values]


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", **fields}]}


TAKEN: list[tuple[str, dict[str, Any]]] = [
    *[(path, body) for path in ("/tokenize", "/v1/embeddings") for body in (message(), message(content=None))],
    ("/classify", message(content=[TEXT, TEXT])),
    ("/pooling", message(tool_calls=None)),
    ("/detokenize", {"tokens": [[1], []]}),
    *[
        ("/score", {first: "a", second: ["b"]})
        for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
    ],
    ("/v1/score", {"text_1": ["a", {"text": "b"}], "text_2": ["c", "d"]}),
    *[("/v1/embed", {"texts": ["a"], "embedding_types": types}) for types in ([], ["int8", "int8"], ["base64"])],
    ("/v2/embed", {"inputs": [{"content": [TEXT, {**TEXT, "text": ""}]}], "priority": 0}),
    *[("/vertex", {"instances": [body]}) for body in (INPUTS, EMBEDDINGS, RANK, message(), {"inputs": SIDES})],
    ("/vertex", {"instances": [{"queries": "a", "items": "b"}], "parameters": {}}),
    *[("/", body) for body in (INPUTS, {**INPUTS, "parameters": {"a": 1}}, EMBEDDINGS, RANK, {"inputs": SIDES})],
    ("/invocations", {"data_1": "a", "data_2": "b"}),
    ("/rerank", {"query": "", "texts": ["a"]}),
    ("/rerank", {"query": "a", "property": "b"}),
    ("/rerank", {"query": "a", "input": ["", {"text": ""}], "truncate": "END"}),
    ("/api/embed", {}),
    *each("/api/embed", "input", None, "", [], [{"text": "a"}]),
    *each("/v1/embeddings", "input", ["a", [1]], [{"text": "a", "image": None}], [1], [[1], [2]]),
    ("/v1/embeddings", {**EMBEDDINGS, "encoding_format": ["float"], "truncate_prompt_tokens": -1, "prompt": "a" * 128}),
    ("/embed", {**INPUTS, "truncate": "START", "input_type": "retrieval.passage", "truncate_prompt_tokens": 1}),
    *each("/predict", "inputs", ["", "b"], [["a"], ["b", ""]]),
    ("/embed_hybrid", {**INPUTS, "outputs": ["multi_vector"] * 8}),
    ("/embed_sparse", {**INPUTS, "task": "passage"}),
    *[("/vectors", {"text": "a", "config": {"task_type": kind, "pooling_strategy": "last"}}) for kind in ("", "query")],
    ("/vectors", {"texts": ["a"], "config": {"pooling_strategy": ""}}),
    ("/pooling", {**EMBEDDINGS, "task": "token_embed"}),
    ("/v1/classify", {"input": [1, 2]}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *[
        case
        for path in ("/tokenize", "/v1/embeddings", "/v1/classify", "/pooling")
        for case in each(path, "messages", [], [[]], [{}], [{"role": None}], [[{"role": "user"}]] * 5)
    ],
    ("/tokenize", message(content=[{"type": "image", "text": "a"}])),
    ("/tokenize", message(content=[{"type": "text"}])),
    ("/tokenize", message(tool_calls=[])),
    *each("/tokenize", "prompt", "", [], [""], ["a"] * 5, [{}]),
    *each("/detokenize", "tokens", [], [-1], [[1], [-1]], [[1]] * 5, "a"),
    *each("/v1/detokenize", "tokens", [], [[1]], [-1]),
    *each("/decode", "ids", [[1]] * 5, [[]], [[1], []], []),
    *[("/score", body) for body in ({}, {"queries": "a"}, {"data_1": "a", "text_2": "b"}, {"documents": "b"})],
    *[("/score", {"queries": "a", "documents": documents}) for documents in ("", [], [""], ["b"] * 5)],
    *[("/v1/embed", {"texts": ["a"], "embedding_types": types}) for types in (["int4"], "float", [None])],
    *[
        ("/v1/embed", {"inputs": [{"content": content}]})
        for content in ([], [{"type": "text"}], [{**TEXT, "text": ""}])
    ],
    *[("/v2/embed", body) for body in ({}, {"texts": "a"}, {"texts": ["a"], "priority": 1000})],
    *[
        ("/vertex", {"instances": [body]})
        for body in ({}, {"inputs": ""}, {"query": "a"}, {"inputs": "a", "dimensions": 9})
    ],
    ("/vertex", {"instances": [INPUTS], "parameters": {"a": 1}}),
    ("/vertex", {"instances": [INPUTS] * 5}),
    *[("/", body) for body in ({}, {**INPUTS, "parameters": []}, {"query": "a"}, {"inputs": {"sentences": ["b"]}})],
    ("/invocations", {**INPUTS, "parameters": "a"}),
    *[
        ("/rerank", body)
        for body in ({"query": "a"}, {"query": "", "documents": ["a"]}, {"query": "a", "property": ""})
    ],
    ("/rerank", {**RANK, "encoding_format": "base64"}),
    *each("/api/embed", "input", [""], ["a", ""], ["a"] * 5, [1]),
    *each(
        "/v1/embeddings",
        "input",
        [{"text": "a", "image": "b"}],
        [{"text": "a", "text_pair": "b"}],
        [{}],
        ["a", 1],
        [["a"]],
        [100],
    ),
    *[
        ("/v1/embeddings", {**EMBEDDINGS, **wrong})
        for wrong in (
            {"encoding_format": ["bytes"]},
            {"truncate": "LEFT"},
            {"truncate_prompt_tokens": 0},
            {"truncate_prompt_tokens": 17},
            {"prompt": "a" * 129},
            {"task": "clustering"},  # the model has prompts, and none for it
            {"output_dimension": 0},
        )
    ],
    *each("/predict", "inputs", "", ["", ""], [["a"], ["", ""]], ["a", "b", "c"], [[]]),
    *[("/embed_hybrid", {**INPUTS, "outputs": outputs}) for outputs in ([], ["dense"] * 9, ["logits"])],
    ("/embed_sparse", {**INPUTS, "task": "clustering"}),
    *[("/vectors", body) for body in ({}, {"text": ""}, {"text": "a", "config": {"task_type": "other"}})],
    ("/vectors", {"text": "a", "config": {"pooling_strategy": "cls"}}),
    ("/pooling", {**EMBEDDINGS, "task": "query"}),
]


@pytest.fixture(scope="module")
def page() -> Any:
    return fetched(loaded=state_with_everything())


@pytest.fixture(scope="module")
def statuses() -> dict[str, int]:
    """Of all bodies, by path and body; one server answers them."""

    async def run() -> dict[str, int]:
        edge = Edge(loaded=state_with_everything(), max_bytes=10_000)
        bodies = [(path, json.dumps(body)) for path, body in (*TAKEN, *REFUSED)]
        return {path + body: (await call(edge.app, "POST", path, body.encode())).status for path, body in bodies}

    return asyncio.run(run())


def allows(page: Any, schema: Any, value: Any) -> bool:
    return bool(Draft202012Validator({**schema, "components": page["components"]}).is_valid(value))


@pytest.mark.holds("Every route is on the OpenAPI page as it is")
@pytest.mark.parametrize(
    ("path", "body", "is_taken"), [*((*one, True) for one in TAKEN), *((*one, False) for one in REFUSED)]
)
def test_what_the_page_allows_is_taken_and_nothing_else(
    path: str, body: dict[str, Any], is_taken: bool, page: Any, statuses: dict[str, int]
) -> None:
    schema = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]

    assert allows(page, schema, body) is is_taken
    assert statuses[path + json.dumps(body)] in ([200] if is_taken else [400, 422])


def test_every_example_is_allowed(page: Any) -> None:
    for path, methods in page["paths"].items():
        content = methods.get("post", {}).get("requestBody", {"content": {}})["content"]
        for kind in content.values():
            known = {"ids", "tokens"}.isdisjoint(kind["example"])  # the test's model has a hundred tokens
            assert allows(page, kind["schema"], kind["example"]) is known, path


def test_limits_are_those_of_the_newest_state() -> None:
    """What dialects share of their schemas is not changed by a page."""
    first = fetched(loaded=state_with_everything())
    loaded = state_with_everything()
    loaded["limits"]["max_client_batch_size"] = 9
    second = fetched(loaded=loaded)

    limits = [
        one["components"]["schemas"]["CohereEmbedBodyOfTexts"]["properties"]["texts"]["maxItems"]
        for one in (first, second)
    ]
    assert limits == [4, 9]
