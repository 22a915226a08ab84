"""The rerank routes in a frontend: what each family of clients sends and gets, and every error in its own shape."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from engine.model.tasks import Task
from engine.types import OutputKind
from server.requests import time_slices
from tests.server.dialects.rerank_requests import DOCUMENTS, MIXEDBREAD, PATHS, RERANKER, RESULTS, TEI, VOYAGE, post
from tests.server.edge import Called, Edge, call, state_with
from tokenizer_pool.messages import Truncation

ORDER = [2, 0, 1, 3]


LOGITS = [5.0, 3.0, 2.0, 2.0]


BEST = [1 / (1 + np.exp(-logit)) for logit in LOGITS]


TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")


def answer(path: str, body: Any, **how: Any) -> Any:
    called = post(path, body, **how)
    assert called.status == 200, called.body
    assert called.headers["content-type"] == "application/json"
    return json.loads(called.body)


def column(items: list[dict[str, Any]], name: str) -> list[Any]:
    return [item[name] for item in items]


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
