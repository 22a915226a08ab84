"""POST /vertex: several bodies in one, each for its own route, all or nothing."""

import asyncio
import json
from typing import Any

import pytest

from engine.types import OutputKind
from tests.server.asking import ask, tei_error
from tests.server.edge import Edge, call, state_with
from wire.vocabulary import RequestClass

EMBED, SIMILAR = {"inputs": "abc", "normalize": False}, {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
OPENAI = {"input": "ab"}


@pytest.mark.holds("TEI's routes")
def test_each_instance_gets_its_routes_answer() -> None:
    called = ask("/vertex", {"instances": [EMBED, SIMILAR, OPENAI]}, OutputKind.POOLED, task="embed")
    first, second, third = json.loads(called.body)["predictions"]

    assert first == [[3.0] * 8]
    assert second == [pytest.approx(1.0)]
    assert [item["embedding"] for item in third["data"]] == [[2.0] * 8]
    assert called.headers["x-compute-tokens"] == called.headers["x-compute-characters"] == "7"


def test_a_rerankers_instances() -> None:
    bodies = [{"query": "a", "texts": ["b", "cde"], "raw_scores": True}, {"inputs": "ab", "raw_scores": True}]
    called = ask("/vertex", {"instances": bodies}, OutputKind.LOGITS, task="rerank", labels=["yes"])

    ranked, predicted = json.loads(called.body)["predictions"]
    assert [item["index"] for item in ranked] == [1, 0]
    assert predicted == [{"score": 2.0, "label": "yes"}]


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize(
    ("body", "status", "start"),
    [
        ({}, 422, "instances is missing"),
        ({"instances": []}, 400, "`instances` cannot be empty"),
        ({"instances": {}}, 422, "instances must be a list"),
        ({"instances": [EMBED, {"inputs": ""}]}, 400, "`instances[1].inputs` cannot be empty"),
        ({"instances": [{"inputs": "a", "dimensions": 99}]}, 422, "instances[0]: dimensions"),
        ({"instances": [EMBED, 5]}, 422, "instances[1]: the body"),
        ({"instances": [EMBED] * 5}, 422, "instances has more items"),
        ({"instances": [{"inputs": ["a"] * 3}] * 2}, 422, "instances has more items"),
        ({"instances": [{**EMBED, "encoding_format": "bytes"}]}, 422, "instances[0]: encoding_format"),
        ({"instances": [EMBED], "parameters": {"normalize": False}}, 422, "parameters is not supported"),
    ],
)
def test_one_wrong_instance_fails_all(body: dict[str, Any], status: int, start: str) -> None:
    given, _, message = tei_error(ask("/vertex", body, OutputKind.POOLED, task="embed"))
    assert (given, message[: len(start)]) == (status, start)


def test_a_list_of_millions_is_refused_early() -> None:
    body = b'{"instances":[' + b"{}," * 400_000 + b"{}]}"

    async def run() -> int:
        edge = Edge(max_bytes=10_000_000)
        return (await call(edge.app, "POST", "/vertex", body)).status

    assert asyncio.run(run()) == 422


def test_an_engines_failure_names_the_instance_and_ends_the_others() -> None:
    async def run() -> tuple[int, str, int]:
        edge = Edge()
        edge.state.update(state_with(OutputKind.POOLED, task="embed"))
        edge.managers.error = ValueError("a bug")
        called = await call(edge.app, "POST", "/vertex", json.dumps({"instances": [EMBED, OPENAI]}).encode())
        return called.status, json.loads(called.body)["error_type"], int(edge.page.admitted_tokens.sum())

    assert asyncio.run(run()) == (424, "Backend", 0)


def test_many_instances_are_bulk() -> None:
    seen: list[Any] = []

    async def run() -> None:
        edge = Edge(max_bytes=10_000)
        edge.app._max_items = 20
        await call(edge.app, "POST", "/vertex", json.dumps({"instances": [EMBED] * 9}).encode())
        seen.extend(submission.request_class for submission in edge.managers.submitted)

    asyncio.run(run())
    assert seen == [RequestClass.BULK] * 9
