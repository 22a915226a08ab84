"""What the rerank routes refuse, in the shape of each family's errors."""

import json
from typing import Any

import pytest

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused
from engine.model.tasks import Task
from engine.types import OutputKind
from server.dialects.rerank import Family, family_of
from server.requests.errors import Overloaded, RequestError
from server.settings.api_keys import ApiKey, digest
from tests.server.dialects.rerank.rerank_requests import MIXEDBREAD, PATHS, RESULTS, TEI, VOYAGE, post
from tests.server.edge import ERROR_KEYS, Called, Edge, call, new_call, route_of, state_with
from tokenizer_pool.messages import TextRefusal, TextRefused


def problem(called: Called, family: dict[str, Any]) -> str:
    """The message of an error in the family's own shape."""
    error = json.loads(called.body)
    if family is TEI:
        assert set(error) == {"error", "error_type"}
        return str(error["error"])
    assert set(error) == ERROR_KEYS
    return str(error["detail" if family is VOYAGE else "message"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", [TEI, RESULTS, VOYAGE, MIXEDBREAD], ids=["tei", "results", "voyage", "mixedbread"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"query": 5}, "query"),
        ({"query": ["a"]}, "query"),
        ({"query": None}, "query"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "many"}, "top_n"),
        ({"encoding_format": "base64"}, "encoding_format"),
        ({"truncation_direction": "up"}, "truncation_direction"),
        ({"max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        ({"max_chunks_per_doc": 0}, "max_chunks_per_doc"),
        ({"instruction": "be kind"}, "instruction"),
        ({"instruction": "be kind", "instruct": "be strict"}, "instruct differs from instruction"),
        ({"top_n": 2, "top_k": 3}, "top_k differs from top_n"),
        ({"top_n": -1, "top_k": 3}, "top_n"),
        ({"return_text": True, "return_documents": False}, "return_documents differs from return_text"),
        ({"return_documents": True, "return_input": False}, "return_input differs from return_documents"),
        ({"raw_scores": True, "use_activation": True}, "raw_scores is the opposite of use_activation"),
        ({"raw_scores": False, "use_activation": False}, "raw_scores is the opposite of use_activation"),
    ],
    ids=str,
)
def test_fields_that_are_wrong(path: str, family: dict[str, Any], change: dict[str, Any], named: str) -> None:
    called = post(path, {**family, **change})

    assert called.status == (422 if family is TEI else 400)
    assert named in problem(called, family)


@pytest.mark.parametrize("family", [RESULTS, VOYAGE, MIXEDBREAD], ids=["results", "voyage", "mixedbread"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"query": ""}, "query"),
        ({"rank_fields": "text"}, "rank_fields"),
        ({"rank_fields": [5]}, "rank_fields"),
        ({"rank_fields": ["text"] * 65}, "rank_fields must be at most 64 names"),
        ({"rank_fields": ["\\"] * 65}, "rank_fields must be at most 64 names"),
        ({"rank_fields": ["title"], "documents": ["a", {"text": "b"}]}, "documents[1] has none of rank_fields"),
        ({"rank_fields": ["title"], "documents": [{"title": ["a"]}]}, "documents[0]"),
        ({"documents": ["a", {"text": "b", "image": "c"}]}, "documents[1].image is not supported"),
    ],
    ids=str,
)
def test_fields_that_tei_does_not_have(family: dict[str, Any], change: dict[str, Any], named: str) -> None:
    field = next(name for name in ("documents", "input") if name in family)
    if "documents" in change:
        change, named = {**change, field: change["documents"]}, named.replace("documents", field)
    if field != "documents":
        change = {name: value for name, value in change.items() if name != "documents"}
    called = post("/rerank", {**family, **change})

    assert called.status == 400
    assert named in problem(called, family)


@pytest.mark.parametrize("family", [TEI, RESULTS, VOYAGE, MIXEDBREAD], ids=["tei", "results", "voyage", "mixedbread"])
@pytest.mark.parametrize(
    ("documents", "named"),
    [
        ([], "{}"),
        ("one text", "{} must be a list of texts"),
        ({"text": "a"}, "{} must be a list of texts"),
        (["a", 5], "{}[1]"),
        ([["a"]], "{}[0]"),
        ([None], "{}[0]"),
        (["a"] * 5, "{} has more items than the maximum allowed batch size of 4"),
        (["a"] * 130, "{} has more items than the maximum allowed batch size of 4"),
    ],
    ids=["none", "text", "object", "number", "list", "null", "many", "very many"],
)
def test_documents_that_are_wrong(family: dict[str, Any], documents: Any, named: str) -> None:
    field = next(name for name in ("texts", "documents", "input") if name in family)
    called = post("/rerank", {**family, field: documents})

    assert called.status in (400, 422)
    assert named.format(field) in problem(called, family)


@pytest.mark.holds("Reranking")
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({**TEI, **RESULTS}, "documents can't be given with texts"),
        ({**TEI, **MIXEDBREAD}, "input can't be given with texts"),
        ({**RESULTS, **MIXEDBREAD}, "input can't be given with documents"),
        ({**TEI, "property": "a"}, "property can't be given with texts"),
        ({**MIXEDBREAD, "property": "a"}, "property can't be given with input"),
    ],
)
def test_documents_of_two_kinds(body: dict[str, Any], named: str) -> None:
    called = post("/v1/rerank", body)
    assert called.status in (400, 422)
    assert named in called.body.decode()


@pytest.mark.parametrize("documents", [[{"content": []}], [{"text": 5}], [{"text": "a"}, {}]])
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
        route_of("/v1/rerank").decode(new_call(), b'{"query":"q","documents":' + documents + b"}")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b'{"query":"q"}', b'{"query":"q","documents":null}', b"{}", b"[]", b"{"])
def test_a_body_that_shows_no_family_gets_the_paths_own_shape(path: str, body: bytes) -> None:
    called = post(path, body)
    if path == "/rerank":
        check_is_for_all(called)
    else:
        assert problem(called, RESULTS)


def check_is_for_all(called: Called) -> None:
    """TEI's error, which Cohere's and Voyage's clients can read too."""
    error = json.loads(called.body)
    assert error.keys() == {"error", "error_type", "message", "detail"}
    assert error["message"] == error["detail"]


@pytest.mark.holds("Errors")
@pytest.mark.parametrize("status", [401, 429])
async def test_what_is_refused_before_its_body_is_read_can_be_read_by_every_familys_client(status: int) -> None:
    edge = Edge(keys=[ApiKey("a", digest(b"k"))] if status == 401 else ())
    if status == 429:
        edge.admission.requests.check = refuse  # type: ignore[method-assign]
    called = await call(edge.app, "POST", "/rerank", [])
    assert called.status == status
    check_is_for_all(called)


def refuse(key: str) -> None:
    raise Overloaded("too much waits", retry_after=1.0)


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
        ("tokenizers", TextRefused(TextRefusal.TOO_LONG, 1, num_tokens=20, max_tokens=16), (422, 400)),
        ("tokenizers", TextRefused(TextRefusal.FAILED, 1), (422, 400)),
        ("managers", RequestRefused(batching.RequestRefusal.NO_ENGINE, -1), (503, 503)),
        ("managers", RequestRefused(batching.RequestRefusal.NON_FINITE, 1), (424, 500)),
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
