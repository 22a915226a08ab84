"""POST /vertex: several bodies in one, each for its own route, all or nothing."""

import asyncio
import json
from typing import Any

import pytest

from engine.types import OutputKind
from server.dialects import invocations
from server.requests import row_memory
from server.requests.work import Trace
from tests.server.asking import ask, tei_error
from tests.server.edge import Edge, call, state_with
from tests.server_e2e.running import PATIENCE
from wire.control import Json
from wire.vocabulary import RequestClass

EMBED, SIMILAR = {"inputs": "abc", "normalize": False}, {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
OPENAI = {"input": "ab"}
OWN = {"outputDimensionality": 2}  # of Vertex AI


@pytest.mark.holds("TEI's routes")
def test_each_instance_gets_its_routes_answer() -> None:
    called = ask("/vertex", {"instances": [EMBED, SIMILAR, OPENAI]}, OutputKind.POOLED, task="embed")
    first, second, third = json.loads(called.body)["predictions"]

    assert first == [[3.0] * 8]
    assert second == [pytest.approx(1.0)]
    assert [item["embedding"] for item in third["data"]] == [[2.0] * 8]
    assert called.headers["x-compute-tokens"] == called.headers["x-compute-characters"] == "7"


async def test_a_rerankers_documents_are_as_the_server_is_told() -> None:
    body = {"instances": [{"query": "a", "documents": ["b"], "return_documents": True}]}
    edge = Edge(loaded=state_with(OutputKind.LOGITS, task="rerank"), has_documents_in_objects=False)
    (ranked,) = json.loads((await call(edge.app, "POST", "/vertex", json.dumps(body).encode())).body)["predictions"]
    assert ranked["results"][0]["document"] == "b"


@pytest.mark.holds("TEI's routes")
@pytest.mark.parametrize(
    ("body", "status", "start"),
    [
        ({}, 422, "instances is missing"),
        ({"instances": []}, 400, "`instances` cannot be empty"),
        ({"instances": {}}, 422, "instances: expected `array`"),
        ({"instances": [EMBED, {"inputs": ""}]}, 400, "`instances[1].inputs` cannot be empty"),
        ({"instances": [{"inputs": "a", "dimensions": 99}]}, 422, "instances[0]: dimensions"),
        ({"instances": [EMBED, 5]}, 422, "instances[1]: expected `object`"),
        ({"instances": [EMBED] * 5}, 422, "instances has more items"),
        ({"instances": [{"inputs": ["a"] * 3}] * 2}, 422, "instances has more items"),
        ({"instances": [{**EMBED, "encoding_format": "bytes"}]}, 422, "instances[0]: encoding_format"),
        ({"instances": [EMBED], "parameters": {"normalize": False}}, 422, "parameters is not supported"),
        ({"instances": [{**EMBED, "outputDimensionality": 2}]}, 422, "instances[0]: outputDimensionality is not"),
        ({"instances": [{**EMBED, "autoTruncate": True}]}, 422, "instances[0]: autoTruncate is not"),
        ({"instances": [{**EMBED, "task_type": "a"}]}, 422, "instances[0]: task_type is not"),
        ({"instances": [{**EMBED, "parameters": OWN}]}, 422, "instances[0]: parameters.outputDimensionality is not"),
        ({"instances": [{**OPENAI, "parameters": OWN}]}, 422, "instances[0]: parameters.outputDimensionality is not"),
    ],
)
def test_one_wrong_instance_fails_all(body: dict[str, Any], status: int, start: str) -> None:
    given, _, message = tei_error(ask("/vertex", body, OutputKind.POOLED, task="embed"))
    assert (given, message[: len(start)]) == (status, start)


@pytest.mark.parametrize(
    ("instances", "start"),
    [
        (b"[" + b"{}," * 250_000 + b"{}]", "instances has more items"),
        (b'[{"inputs":[' + b"[]," * 250_000 + b"[]]}]", "instances[0]: inputs has more items"),
        (b'[{"inputs":[' + b"{}," * 250_000 + b"{}]}]", "instances has more items"),
        (b"[" + b"[]," * 250_000 + b"[]]", "instances[0]: expected `object`"),
        (b'[{"inputs":["' + b"{" * 400 + b'"]},{}]', "instances[1]: inputs is missing"),
    ],
)
async def test_long_lists_are_refused_before_they_are_decoded(instances: bytes, start: str) -> None:
    edge = Edge(max_bytes=10_000_000)
    called = await call(edge.app, "POST", "/vertex", b'{"instances":%b}' % instances)
    assert tei_error(called)[2][: len(start)] == start


@pytest.mark.parametrize("error", [None, ValueError("a bug")])
async def test_the_room_for_rows_is_given_back(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "SMALL_BYTES", 0)
    edge = Edge()
    edge.managers.gate, edge.managers.error = asyncio.Event(), error
    body = json.dumps({"instances": [EMBED, OPENAI]}).encode()
    called = asyncio.create_task(call(edge.app, "POST", "/vertex", body))
    for _ in range(2):
        await edge.managers.arrivals.get()
    room = edge.admission.row_memory_of(RequestClass.INTERACTIVE)
    held = room.num_held_bytes
    edge.managers.gate.set()
    await called
    assert (held, room.num_held_bytes) == (2 * 8 * (4 + 12), 0)


def test_an_instance_for_pooling() -> None:
    called = ask("/vertex", {"instances": [{"input": "ab"}]}, OutputKind.TOKENS, task="late-interaction")
    assert [item["object"] for item in json.loads(called.body)["predictions"][0]["data"]] == ["pooling"]


def test_decoded_ids_are_told() -> None:
    traces = [Trace(are_ids_decoded=decoded) for decoded in (False, True)]
    whole = Trace()
    invocations._sum_up(whole, traces)
    assert whole.are_ids_decoded


async def test_an_engines_failure_names_the_instance_and_ends_the_others() -> None:
    edge = Edge()
    edge.state.update(state_with(OutputKind.POOLED, task="embed"))
    edge.managers.error = ValueError("a bug")
    called = await call(edge.app, "POST", "/vertex", json.dumps({"instances": [EMBED, OPENAI]}).encode())
    assert (called.status, json.loads(called.body)["error_type"], int(edge.page.admitted_tokens.sum())) == (
        424,
        "Backend",
        0,
    )


async def test_many_instances_are_bulk() -> None:
    seen: list[Any] = []
    edge = Edge(max_bytes=10_000)
    edge.change(max_items=20)
    await call(edge.app, "POST", "/vertex", json.dumps({"instances": [EMBED] * 9}).encode())
    seen.extend(submission.request_class for submission in edge.managers.submitted)
    assert seen == [RequestClass.BULK] * 9


def large_rows() -> Json:
    """A model with rows of over 64 KiB."""
    loaded = state_with(OutputKind.POOLED, task="embed")
    loaded["models"][0]["info"] |= {"dimensions": 17_000}
    return loaded


@pytest.mark.holds("Limits")
def test_instances_that_exceed_the_room_together_take_it_as_one() -> None:
    """One request always fits. By themselves they would wait for each other, and so would those of two requests."""

    async def run() -> tuple[list[int], int]:
        edge = Edge(max_held_bytes=1, max_wait=10, loaded=large_rows())
        body = json.dumps({"instances": [OPENAI, EMBED, OPENAI]}).encode()
        called = await asyncio.gather(*[call(edge.app, "POST", "/vertex", body) for _ in range(3)])
        return [each.status for each in called], edge.admission.row_memory_of(RequestClass.INTERACTIVE).num_held_bytes

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == ([200] * 3, 0)


@pytest.mark.holds("Limits")
async def test_instances_wait_for_room_until_it_is_refused_to_all() -> None:
    edge = Edge(max_held_bytes=1, max_wait=0, loaded=large_rows())
    room = edge.admission.row_memory_of(RequestClass.INTERACTIVE)
    others = await room.take(100)
    called = await call(edge.app, "POST", "/vertex", json.dumps({"instances": [OPENAI, EMBED]}).encode())
    assert room.num_held_bytes == room.max_bytes == 1  # nothing counts as more than all
    others.release()
    assert not edge.page.kept_back_tokens.any()
    status, message, num_submitted = called.status, json.loads(called.body)["error"], len(edge.managers.submitted)
    assert (status, num_submitted) == (503, 0)
    assert "too many rows and answers wait" in message


async def test_instances_with_small_rows_count_together() -> None:
    loaded = large_rows()
    loaded["models"][0]["info"] |= {"dimensions": 10_000}
    edge = Edge(loaded=loaded, max_held_bytes=4 << 20)
    edge.managers.gate = asyncio.Event()
    body = json.dumps({"instances": [OPENAI, OPENAI]}).encode()
    called = asyncio.create_task(call(edge.app, "POST", "/vertex", body))
    for _ in range(2):
        await edge.managers.arrivals.get()
    num_bytes = edge.admission.row_memory_of(RequestClass.INTERACTIVE).num_held_bytes
    edge.managers.gate.set()
    await called
    assert num_bytes == 2 * 10_000 * (4 + 12)
