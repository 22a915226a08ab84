"""The rerank routes in a frontend: what each family of clients sends and gets, and every error in its own shape."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused
from engine.model.tasks import Task
from engine.types import OutputKind
from server.dialects.rerank.bodies import Family, decode, family_of
from server.requests import time_slices
from server.requests.errors import RequestError
from tests.server.edge import Called, Edge, call, new_call, state_with
from tokenizer_pool.messages import Refusal, TextRefused, Truncation

RERANKER = state_with(OutputKind.LOGITS, task=Task.RERANK, activation="sigmoid", labels=["LABEL_0"])
# The stand-in's raw scores are lengths of pairs: 1 for the query, and these documents'.
DOCUMENTS = ["aa", "b", "cccc", "d"]
ORDER = [2, 0, 1, 3]
LOGITS = [5.0, 3.0, 2.0, 2.0]
BEST = [1 / (1 + np.exp(-logit)) for logit in LOGITS]
TEI = {"query": "q", "texts": DOCUMENTS}
RESULTS = {"query": "q", "documents": DOCUMENTS}
VOYAGE = {"query": "q", "documents": DOCUMENTS, "truncation": True}
MIXEDBREAD = {"query": "q", "input": DOCUMENTS}
PATHS = ("/rerank", "/v1/rerank", "/v2/rerank", "/v1/reranking")
TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")


def post(
    path: str,
    body: Any,
    *,
    prepare: Callable[[Edge], object] = lambda edge: None,
    loaded: Any = RERANKER,
    **headers: str,
) -> Called:
    async def run() -> Called:
        edge = Edge(loaded=loaded)
        prepare(edge)
        payload = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await call(edge.app, "POST", path, payload, named)

    return asyncio.run(run())


def answer(path: str, body: Any, **how: Any) -> Any:
    called = post(path, body, **how)
    assert called.status == 200, called.body
    assert called.headers["content-type"] == "application/json"
    return json.loads(called.body)


def column(items: list[dict[str, Any]], name: str) -> list[Any]:
    return [item[name] for item in items]


# what each family gets


@pytest.mark.parametrize("path", PATHS)
def test_texts_get_teis_bare_list(path: str) -> None:
    items = answer(path, TEI)
    assert column(items, "index") == ORDER
    assert np.allclose(column(items, "score"), BEST)
    assert all(set(item) == {"index", "score"} for item in items)
    assert column(answer(path, {**TEI, "return_text": True}), "text") == [DOCUMENTS[index] for index in ORDER]
    assert column(answer(path, {**TEI, "raw_scores": True}), "score") == LOGITS


def test_what_basetens_client_sends() -> None:
    body = {"raw_scores": False, "return_text": False, "truncate": False, "truncation_direction": "Right", **TEI}
    called = post("/rerank", body)

    assert column(json.loads(called.body), "index") == ORDER
    assert called.headers["x-compute-tokens"] == "12"
    assert all(called.headers[name].isdigit() for name in TIMES)


@pytest.mark.parametrize("path", PATHS)
def test_documents_get_the_common_results(path: str) -> None:
    called = post(path, RESULTS, x_request_id="mine")
    body = json.loads(called.body)

    assert set(body) == {"id", "object", "model", "results", "usage", "meta"}
    assert (body["id"], body["object"], body["model"]) == ("rerank-mine", "rerank", "the-model")
    assert column(body["results"], "index") == ORDER
    assert np.allclose(column(body["results"], "relevance_score"), BEST)
    assert all(set(item) == {"index", "relevance_score"} for item in body["results"])
    assert body["usage"] == {"prompt_tokens": 12, "total_tokens": 12, "truncated_inputs": 0}
    assert body["meta"] == {"api_version": {"version": "2"}, "tokens": {"input_tokens": 12}}
    assert "x-compute-type" not in called.headers


def test_documents_come_back_where_they_are_asked_for() -> None:
    body = {**RESULTS, "documents": ["aa", {"text": 'b\n"é', "title": "t"}], "return_documents": True}
    results = answer("/v1/rerank", body)["results"]
    assert column(results, "document") == [{"text": 'b\n"é'}, {"text": "aa"}]


@pytest.mark.parametrize("mark", [{"top_k": 3}, {"truncation": True}, {"top_k": 3, "truncation": False}])
def test_voyages_shape(mark: dict[str, Any]) -> None:
    body = answer("/v1/rerank", {**RESULTS, **mark})

    assert (body["object"], body["model"], body["usage"]["total_tokens"]) == ("list", "the-model", 12)
    assert column(body["data"], "index") == (ORDER[:3] if "top_k" in mark else ORDER)
    assert all(set(item) == {"index", "relevance_score"} for item in body["data"])
    assert column(answer("/v1/rerank", {**VOYAGE, "return_documents": True})["data"], "document")[0] == "cccc"


@pytest.mark.parametrize("path", PATHS)
def test_mixedbreads_shape(path: str) -> None:
    body = answer(path, {**MIXEDBREAD, "top_k": 2, "return_input": True})

    assert (body["object"], body["top_k"], body["return_input"]) == ("list", 2, True)
    assert column(body["data"], "index") == ORDER[:2]
    assert np.allclose(column(body["data"], "score"), BEST[:2])
    assert column(body["data"], "input") == ["cccc", "aa"]
    assert set(column(body["data"], "object")) == {"rank_result"}


@pytest.mark.parametrize("family", [TEI, RESULTS])
@pytest.mark.parametrize(("top_n", "num_results"), [(None, 4), (0, 4), (1, 1), (4, 4), (99, 4)])
def test_top_n(family: dict[str, Any], top_n: int | None, num_results: int) -> None:
    body = answer("/rerank", {**family, "top_n": top_n})
    assert column(body if family is TEI else body["results"], "index") == ORDER[:num_results]


@pytest.mark.parametrize("fields", [{"raw_scores": True}, {"use_activation": False}])
def test_raw_scores_by_either_name(fields: dict[str, Any]) -> None:
    assert column(answer("/rerank", {**RESULTS, **fields})["results"], "relevance_score") == LOGITS


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize("family", [TEI, RESULTS, VOYAGE, MIXEDBREAD])
@pytest.mark.parametrize("by_header", [False, True])
def test_raw_bytes_are_in_the_requests_order(family: dict[str, Any], by_header: bool) -> None:
    fields = {} if by_header else {"encoding_format": "bytes"}
    accept = "application/octet-stream" if by_header else "*/*"
    called = post("/rerank", {**family, **fields, "raw_scores": True, "top_n": 1}, accept=accept)

    assert called.headers["content-type"] == "application/octet-stream"
    assert called.headers["x-embedline-shape"] == "4,1"
    assert called.headers["x-embedline-dtype"] == "float32"
    assert called.headers["x-embedline-prompt-tokens"] == "12"
    assert np.frombuffer(called.body, "<f4").tolist() == [3, 2, 5, 2]
    assert ("x-compute-type" in called.headers) is (family is TEI)


def test_scores_lose_nothing_on_their_way() -> None:
    scores = np.random.default_rng(1).standard_normal(4).astype(np.float32)

    def prepare(edge: Edge) -> None:
        edge.managers.rows = scores[:, None]

    items = answer("/rerank", {**TEI, "raw_scores": True}, prepare=prepare)
    assert np.array_equal(np.array(column(items, "score"), np.float32), np.sort(scores)[::-1])


def test_a_long_list_is_written_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SECONDS", 0.0)
    documents = ["x" * 300_000] * 4

    async def run() -> tuple[Called, int]:
        edge = Edge(loaded=RERANKER, max_bytes=2_000_000)
        body = json.dumps({"query": "q", "texts": documents, "return_text": True}).encode()
        task, turns = asyncio.ensure_future(call(edge.app, "POST", "/rerank", body)), 0
        while not task.done():
            turns += bool(edge.managers.submitted)
            await asyncio.sleep(0)
        return task.result(), turns

    called, turns = asyncio.run(run())
    assert column(json.loads(called.body), "text") == documents
    assert turns >= 4


# what is passed on


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Truncation.RIGHT),
        ({"truncate": False}, Truncation.NONE),
        ({"truncate": True, "truncation_direction": "left"}, Truncation.LEFT),
        ({"truncation": False}, Truncation.NONE),
        ({"truncation": None}, Truncation.RIGHT),
    ],
)
def test_truncation(fields: dict[str, Any], expected: Truncation) -> None:
    asked: list[Any] = []
    answer("/rerank", {**RESULTS, **fields}, prepare=lambda edge: asked.append(edge.tokenizers.asked))
    assert asked[0][0][1]["truncation"] is expected


@pytest.mark.parametrize("name", ["instruction", "instruct"])
def test_an_instruction(name: str) -> None:
    asked: list[Any] = []
    loaded = state_with(OutputKind.LOGITS, task=Task.RERANK, instruction="be strict")
    answer("/rerank", {**RESULTS, name: "be kind"}, loaded=loaded, prepare=lambda e: asked.append(e.tokenizers.asked))
    assert asked[0][0][1]["prompt"] == "be kind"

    refused = post("/rerank", {**RESULTS, name: "be kind"}).error()
    assert refused["param"] == name
    assert "kind" not in refused["message"]


def test_embedding_models_rank_too() -> None:
    def prepare(edge: Edge) -> None:
        edge.managers.rows = np.array([[1, 0], [0, 1], [1, 1], [2, 0], [-1, 0]], np.float32)

    items = answer("/rerank", TEI, loaded=state_with(OutputKind.POOLED), prepare=prepare)
    assert column(items, "index") == [2, 1, 0, 3]
    assert np.allclose(column(items, "score"), [1, 0.5**0.5, 0, -1])


# what goes wrong


def problem(called: Called, family: dict[str, Any]) -> str:
    """The message of an error in the family's own shape."""
    error = json.loads(called.body)
    if family is TEI:
        assert set(error) == {"error", "error_type"}
        return str(error["error"])
    if family is VOYAGE:
        assert set(error) == {"detail"}
        return str(error["detail"])
    return str(called.error()["message"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", [TEI, RESULTS, VOYAGE, MIXEDBREAD], ids=["tei", "results", "voyage", "mixedbread"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"query": ""}, "query"),
        ({"query": 5}, "query"),
        ({"query": ["a"]}, "query"),
        ({"query": None}, "query"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "many"}, "top_n"),
        ({"encoding_format": "base64"}, "encoding_format"),
        ({"truncation_direction": "up"}, "truncation_direction"),
        ({"max_tokens_per_doc": 15}, "max_tokens_per_doc"),
        ({"rank_fields": ["title"]}, "rank_fields"),
        ({"rank_fields": ["text", "text"]}, "rank_fields"),
        ({"rank_fields": "text"}, "rank_fields"),
        ({"instruction": "be kind"}, "instruction"),
    ],
    ids=str,
)
def test_fields_that_are_wrong(path: str, family: dict[str, Any], change: dict[str, Any], named: str) -> None:
    called = post(path, {**family, **change})

    is_empty = change == {"query": ""}
    assert called.status == (422 if family is TEI and not is_empty else 400)
    assert named in problem(called, family)


@pytest.mark.parametrize("family", [TEI, RESULTS, VOYAGE, MIXEDBREAD], ids=["tei", "results", "voyage", "mixedbread"])
@pytest.mark.parametrize(
    ("documents", "named"),
    [
        ([], "{}"),
        ("one text", "{} must be a list of texts"),
        ({"text": "a"}, "{} must be a list of texts"),
        (["a", ""], "{}[1]"),
        (["a", 5], "{}[1]"),
        ([["a"]], "{}[0]"),
        ([None], "{}[0]"),
        (["a"] * 5, "{} has more items than the maximum allowed batch size of 4"),
        (["a"] * 130, "{} has more items than the maximum allowed batch size of 4"),
    ],
    ids=["none", "text", "object", "empty", "number", "list", "null", "many", "very many"],
)
def test_documents_that_are_wrong(family: dict[str, Any], documents: Any, named: str) -> None:
    field = next(name for name in ("texts", "documents", "input") if name in family)
    called = post("/rerank", {**family, field: documents})

    assert called.status in (400, 422)
    assert named.format(field) in problem(called, family)


@pytest.mark.parametrize("documents", [[{"content": []}], [{"text": 5}], [{"text": ""}], [{"text": "a"}, {}]])
def test_objects_that_are_no_texts(documents: Any) -> None:
    error = post("/rerank", {**RESULTS, "documents": documents}).error()
    assert error["param"].startswith(f"documents[{len(documents) - 1}]")


@pytest.mark.parametrize(
    "documents",
    [
        b'[{"text":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]",
        b"[" * 100_000,
        b"[" + b'"",' * 1_000_000 + b'""]',
        b"[" + b"{}," * 1_000_000 + b"{}]",
        b"[" + b"5," * 1_000_000 + b"5]",
    ],
    ids=["deep object", "deep list", "empty texts", "empty objects", "numbers"],
)
def test_what_would_take_long_to_decode_is_refused(documents: bytes) -> None:
    with pytest.raises(RequestError):
        decode(new_call(), b'{"query":"q","documents":' + documents + b"}")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b'{"query":"q"}', b'{"query":"q","documents":null}', b"{}", b"[]", b"{"])
def test_a_body_that_shows_no_family_gets_the_paths_own_shape(path: str, body: bytes) -> None:
    called = post(path, body)
    assert problem(called, TEI if path == "/rerank" else RESULTS)


@pytest.mark.parametrize("path", PATHS)
def test_texts_are_never_repeated(path: str) -> None:
    for family in (TEI, RESULTS, VOYAGE, MIXEDBREAD):
        field = next(name for name in ("texts", "documents", "input") if name in family)
        for change in ({"query": {"QXZJ": 1}}, {field: ["QXZJ", 5]}, {field: [{"QXZJ": 1}]}, {"top_n": "QXZJ"}):
            assert b"QXZJ" not in post(path, {**family, **change}).body


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize("family", [TEI, RESULTS, VOYAGE, MIXEDBREAD], ids=["tei", "results", "voyage", "mixedbread"])
@pytest.mark.parametrize(
    ("where", "error", "status"),
    [
        ("tokenizers", TextRefused(Refusal.TOO_LONG, 1, num_tokens=20, max_tokens=16), (422, 400)),
        ("tokenizers", TextRefused(Refusal.FAILED, 1), (422, 400)),
        ("managers", RequestRefused(batching.Refusal.NO_ENGINE, -1), (503, 503)),
        ("managers", RequestRefused(batching.Refusal.NON_FINITE, 1), (424, 500)),
        ("managers", ZeroDivisionError("an inner detail"), (424, 500)),
    ],
)
def test_failures(family: dict[str, Any], where: str, error: Exception, status: tuple[int, int]) -> None:
    called = post("/rerank", family, prepare=lambda edge: setattr(getattr(edge, where), "error", error))

    assert called.status == status[family is not TEI]
    assert problem(called, family)
    assert b"inner detail" not in called.body
    assert ("retry-after" in called.headers) is (called.status == 503)


@pytest.mark.parametrize(("family", "status"), [(TEI, 424), (RESULTS, 400), (VOYAGE, 400), (MIXEDBREAD, 400)])
def test_a_model_that_can_not(family: dict[str, Any], status: int) -> None:
    called = post("/rerank", family, loaded=state_with(OutputKind.LOGITS, task=Task.CLASSIFY, labels=["a", "b"]))
    assert called.status == status
    assert "it is for classify" in problem(called, family)


@pytest.mark.parametrize(
    ("body", "counted"),
    [
        (RESULTS, ["embedline_input_tokens_total", "the-model", 12]),
        ({**RESULTS, "query": ""}, ["embedline_rejected_total", "empty", 1]),
        ({**TEI, "texts": ["a"] * 5}, ["embedline_rejected_total", "batch_size", 1]),
    ],
    ids=["good", "empty", "too many"],
)
def test_what_is_counted(body: dict[str, Any], counted: list[Any]) -> None:
    async def run() -> list[list[object]]:
        edge = Edge(loaded=RERANKER)
        await call(edge.app, "POST", "/rerank", json.dumps(body).encode())
        counts: list[list[object]] = edge.metrics.drain()["counts"]
        return counts

    assert counted in asyncio.run(run())


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize(
    ("body", "family"),
    [
        (TEI, Family.TEI),
        (RESULTS, Family.RESULTS),
        ({**RESULTS, "top_k": None, "truncation": None}, Family.RESULTS),
        (VOYAGE, Family.VOYAGE),
        ({**RESULTS, "top_k": "five"}, Family.VOYAGE),
        (MIXEDBREAD, Family.MIXEDBREAD),
        ({**MIXEDBREAD, "top_k": 5}, Family.MIXEDBREAD),
        ({**TEI, **RESULTS, **MIXEDBREAD}, Family.TEI),
        ({"query": 5}, None),
        ([], None),
    ],
    ids=str,
)
def test_the_family_shows_also_in_a_body_that_is_wrong(body: Any, family: Family | None) -> None:
    assert family_of(json.dumps(body).encode()) is family
