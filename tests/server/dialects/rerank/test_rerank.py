"""The rerank routes in a frontend: what each family of clients sends and gets, and every error in its own shape."""

import asyncio
import json
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from engine.model.tasks import Task
from engine.types import OutputKind
from server.requests import limits
from tests.server.dialects.rerank.rerank_requests import (
    DOCUMENTS,
    MIXEDBREAD,
    PATHS,
    RERANKER,
    RESULT,
    RESULTS,
    TEI,
    VOYAGE,
    post,
)
from tests.server.edge import Edge, call, state_with

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
    called = post(path, {**RESULTS, "return_documents": False}, x_request_id="mine")
    body = json.loads(called.body)

    assert set(body) - {"data"} == {"id", "object", "model", "results", "usage", "meta"}
    assert (body["id"], body["object"], body["model"]) == ("rerank-mine", "rerank", "the-model")
    assert column(body["results"], "index") == ORDER
    assert np.allclose(column(body["results"], "relevance_score"), BEST)
    assert all(set(item) == {"index", "relevance_score"} for item in body["results"])
    assert body["usage"] == {"prompt_tokens": 12, "total_tokens": 12, "truncated_inputs": 0}
    version = "1" if path == "/v1/rerank" else "2"
    assert body["meta"] == {
        "api_version": {"version": version},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": 12},
    }
    assert "x-compute-type" not in called.headers


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize(
    ("path", "fields", "document"),
    [
        ("/rerank", {}, {"text": "cccc"}),  # vLLM
        ("/v1/rerank", {}, {"text": "cccc"}),  # Jina
        ("/v2/rerank", {}, None),  # Cohere
        ("/v2/rerank", {"return_documents": True}, {"text": "cccc"}),
        ("/v1/rerank", {"return_documents": False}, None),
        ("/rerank", {"raw_scores": False}, None),  # Infinity
        ("/rerank", {"raw_scores": False, "return_documents": True}, "cccc"),
    ],
)
def test_results_have_documents_as_each_client_expects_them(path: str, fields: dict[str, Any], document: Any) -> None:
    best = answer(path, {**RESULTS, **fields})["results"][0]
    assert best.get("document") == document
    assert set(best) == RESULT | ({"document"} if document else set())


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank"])
def test_documents_as_plain_texts_by_a_flag(path: str) -> None:
    body = {**RESULTS, "return_documents": True}
    assert answer(path, body, has_documents_in_objects=False)["results"][0]["document"] == "cccc"


def test_objects_come_back_with_their_text() -> None:
    body = {**RESULTS, "documents": ["aa", {"text": 'b\n"é', "title": "t"}], "return_documents": True}
    results = answer("/v1/rerank", body)["results"]
    assert column(results, "document") == [{"text": 'b\n"é'}, {"text": "aa"}]


@pytest.mark.parametrize("name", ["return_text", "return_documents", "return_input"])
def test_documents_are_returned_by_any_name_of_the_option(name: str) -> None:
    best = DOCUMENTS[ORDER[0]]
    assert answer("/rerank", {**TEI, name: True, "top_n": 0, "top_k": 1}) == [
        {"index": ORDER[0], "score": ANY, "text": best}
    ]
    assert answer("/v2/rerank", {**RESULTS, name: True})["results"][0]["document"] == {"text": best}
    assert answer("/rerank", {**VOYAGE, name: True})["data"][0]["document"] == best
    assert answer("/rerank", {**MIXEDBREAD, name: True})["data"][0]["input"] == best


@pytest.mark.holds("Reranking")
def test_rank_fields_are_joined_in_their_order() -> None:
    documents = [{"title": "A", "year": 1999, "text": "x" * 9, "is": True}, {"year": None, "title": "BB"}, "cccc"]
    body = {**RESULTS, "documents": documents, "rank_fields": ["title", "year", "title"], "raw_scores": True}
    results = answer("/v1/rerank", {**body, "return_documents": True})["results"]
    assert column(results, "document") == ["A\n1999", "cccc", "BB"]
    assert column(results, "relevance_score") == [7, 5, 3]


@pytest.mark.parametrize("rank_fields", [None, [], ["text"]])
def test_the_text_of_an_object_is_ranked_by_default(rank_fields: Any) -> None:
    document = {"text": "a", "title": "t" * 9, "url": "u", "image": None}
    body = {**RESULTS, "documents": [document], "rank_fields": rank_fields}
    assert answer("/v1/rerank", body)["results"][0]["document"] == {"text": "a"}


@pytest.mark.parametrize(
    ("fields", "has_data"),
    [({}, True), ({"return_documents": True}, True), ({"top_n": 2}, False), ({"max_tokens_per_doc": 9}, False)],
)
def test_voyages_data_beside_results_where_the_body_may_be_voyages(fields: dict[str, Any], has_data: bool) -> None:
    body = answer("/v1/rerank", {**RESULTS, **fields})
    assert ("data" in body) is has_data
    if has_data:
        assert column(body["data"], "index") == ORDER
        assert np.allclose(column(body["data"], "relevance_score"), BEST)
        assert body["data"][0].get("document") == ("cccc" if fields else None)
    assert "data" not in answer("/rerank", {**RESULTS, **fields})


@pytest.mark.holds("Scores")
@pytest.mark.parametrize(
    ("family", "fields", "expected"),
    [
        (TEI, {}, BEST),
        (RESULTS, {}, BEST),
        (VOYAGE, {}, BEST),
        (MIXEDBREAD, {}, BEST),
        (RESULTS, {"use_activation": True}, LOGITS),  # vLLM's: as the model's files say
        (TEI, {"raw_scores": True}, LOGITS),
    ],
)
def test_scores_are_from_0_to_1_whatever_the_models_files_name(
    family: dict[str, Any], fields: dict[str, Any], expected: list[float]
) -> None:
    without = state_with(OutputKind.LOGITS, task=Task.RERANK, activation="identity", labels=["LABEL_0"])
    body = answer("/rerank", {**family, **fields}, loaded=without)
    items = body if isinstance(body, list) else body.get("results") or body["data"]
    assert np.allclose(column(items, "relevance_score" if "documents" in family else "score"), expected)


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize("family", [TEI, RESULTS, VOYAGE, MIXEDBREAD])
def test_an_empty_document_is_ranked_with_the_others(family: dict[str, Any]) -> None:
    field = next(name for name in ("texts", "documents", "input") if name in family)
    body = answer("/rerank", {**family, field: ["aa", "", "b"], "raw_scores": True})
    items = body if isinstance(body, list) else body.get("results") or body["data"]
    assert column(items, "index") == [0, 2, 1]
    assert column(items, "relevance_score" if "documents" in family else "score") == [3, 2, 1]


def test_an_empty_query_as_tei_takes_it() -> None:
    assert column(answer("/rerank", {**TEI, "query": ""}), "index") == ORDER
    assert post("/rerank", {**TEI, "query": "", "texts": ["a", ""]}).status == 400


@pytest.mark.holds("Reranking")
def test_documents_are_cut_to_the_tokens_of_a_document() -> None:
    called = post("/v2/rerank", {**RESULTS, "max_tokens_per_doc": 2, "use_activation": False})
    results = json.loads(called.body)["results"]
    assert {item["index"]: item["relevance_score"] for item in results} == {0: 3, 1: 2, 2: 3, 3: 2}
    assert called.headers["x-embedline-truncated-inputs"] == "1"


@pytest.mark.parametrize("fields", [{"max_tokens_per_doc": 16}, {"max_tokens_per_doc": 0}, {"max_chunks_per_doc": 1}])
def test_limits_of_a_document_that_change_nothing(fields: dict[str, Any]) -> None:
    asked: list[Any] = []
    answer("/v2/rerank", {**RESULTS, **fields}, prepare=lambda edge: asked.append(edge.tokenizers.asked))
    assert len(asked[0]) == 1


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


async def test_a_long_list_is_written_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLICE_SECONDS", 0.0)
    documents = ["x" * 300_000] * 4
    edge = Edge(loaded=RERANKER, max_bytes=2_000_000)
    body = json.dumps({"query": "q", "texts": documents, "return_text": True}).encode()
    task, turns = asyncio.ensure_future(call(edge.app, "POST", "/rerank", body)), 0
    while not task.done():
        turns += bool(edge.managers.submitted)
        await asyncio.sleep(0)
    called, turns = task.result(), turns
    assert column(json.loads(called.body), "text") == documents
    assert turns >= 4


@pytest.mark.parametrize("name", ["instruction", "instruct"])
def test_an_instruction(name: str) -> None:
    asked: list[Any] = []
    loaded = state_with(OutputKind.LOGITS, task=Task.RERANK, instruction="be strict")
    answer("/rerank", {**RESULTS, name: "be kind"}, loaded=loaded, prepare=lambda e: asked.append(e.tokenizers.asked))
    assert asked[0][0][1]["prompt"] == "be kind"

    refused = post("/rerank", {**RESULTS, name: "be kind"}).error()
    assert refused["param"] == name
    assert "kind" not in refused["message"]
