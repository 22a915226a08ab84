"""One value that no decoder takes: it is named, or fails alone; and what may stand before a body."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest

from server.dialects.table import ROUTES
from server.http.request import BodyDecoder
from server.requests.embeddings import UNREADABLE
from server.requests.errors import MalformedBody
from tests.server.edge import Called, answered, good_body, state_with_everything
from tests.server.loop_share import turns_during

HALF = rb'"a\ud83d"'
SENTENCE = " is not valid JSON in UTF-8 (another encoding, as Latin-1, and half of a surrogate pair are not)"
BOM = b"\xef\xbb\xbf"


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None, **edge: Any) -> Called:
    return answered("POST", path, body, headers, max_bytes=1 << 20, **edge)


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", b'{"input":["a","b",%b]}' % HALF, "input[2]"),
        ("/v1/embeddings", b'{"input":%b}' % HALF, "input"),
        ("/v1/embeddings", rb'{"input":["a\udc00\ud83d"]}', "input[0]"),
        ("/v1/embeddings", b'{"input":["a","\xed\xa0\xbd"]}', "input[1]"),
        ("/v1/embeddings", b'{"input":["a","\xff"]}', "input[1]"),
        ("/v1/embeddings", b'{"input":["a",{"text":%b}]}' % HALF, "input[1].text"),
        ("/v1/embeddings", b'{"messages":[{"role":"user","content":%b}]}' % HALF, "messages[0].content"),
        ("/v1/embeddings", b'{"input":"a","user":%b}' % HALF, "user"),
        ("/v1/embeddings", b'{"input":["a","\\x"]}', "input[1]"),
        ("/v1/embeddings", b'{"input":["a",%b]}' % (b"[" * 64 + b"]" * 64), "input[1]"),
        ("/v1/rerank", b'{"query":%b,"documents":["b"]}' % HALF, "query"),
        ("/v1/rerank", b'{"query":"a","documents":["b",{"text":%b}]}' % HALF, "documents[1].text"),
        ("/v1/score", b'{"queries":"a","documents":["b",%b]}' % HALF, "documents[1]"),
    ],
)
def test_the_value_that_is_wrong_is_named(path: str, body: bytes, param: str) -> None:
    error = post(path, body, loaded=state_with_everything()).error()

    assert error["param"] == param
    assert error["message"].startswith(f"{param} is ")


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", b'{"input":["a",NaN]}', "input[1] is not valid JSON"),
        ("/embed", b'{"inputs":["a",%b]}' % HALF, f"inputs[1]{SENTENCE}"),
        ("/embed", '{"inputs":["Moët"]}'.encode("latin-1"), f"inputs[0]{SENTENCE}"),
        ("/api/embeddings", b'{"prompt":%b}' % HALF, f"prompt{SENTENCE}"),
        ("/vertex", b'{"instances":[{"inputs":"a"},{"inputs":["b",%b]}]}' % HALF, f"instances[1].inputs[1]{SENTENCE}"),
        ("/v1/embeddings", b"{'input':'a'}", "the body is not valid JSON in UTF-8 (at byte 1)"),
        ("/v1/embeddings", b"NaN", "the body is not valid JSON in UTF-8 (at byte 0)"),
        ("/v1/embeddings", b'{"input":"a"', "the body is not valid JSON in UTF-8 (at byte 12)"),
        ("/v1/embeddings", BOM + b'{"input":"a"', "the body is not valid JSON in UTF-8 (at byte 15)"),
        ("/v1/embeddings", b'{"a secret":%b}' % HALF, "the body is not valid JSON in UTF-8"),
    ],
)
def test_what_it_is_called(path: str, body: bytes, message: str) -> None:
    error = json.loads(post(path, body).body)["error"]

    assert (error if isinstance(error, str) else error["message"]) == message


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize("text", [HALF, b'"\xed\xa0\xbd"', rb'"\ud83d\ud83d"', b'{"text":%b}' % HALF])
def test_it_fails_alone_where_the_request_allows_it(text: bytes) -> None:
    body = b'{"input":["one",%b,"three",%b],"on_error":"null"}' % (text, text)
    called = post("/v1/embeddings", body)
    items = json.loads(called.body)["data"]

    assert [item["embedding"] and item["embedding"][0] for item in items] == [3, None, 5, None]
    assert [items[index]["error"]["message"] for index in (1, 3)] == [f"input[{index}]{SENTENCE}" for index in (1, 3)]
    assert UNREADABLE.encode() not in called.body
    assert called.headers["x-embedline-failed-inputs"] == "2"


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/embed", b'{"inputs":["one",%b],"on_error":"null"}', lambda found: found),
        ("/embed_all", b'{"inputs":["one",%b],"on_error":"null"}', lambda found: found),
        ("/api/embed", b'{"input":["one",%b],"on_error":"null"}', lambda found: found["embeddings"]),
        ("/v2/embed", b'{"texts":["one",%b],"on_error":"null"}', lambda found: found["embeddings"]["float"]),
        (
            "/v2/embed",
            b'{"inputs":[{"content":[{"type":"text","text":"one"}]},{"content":[{"type":"text","text":"a"},'
            b'{"type":"text","text":%b}]}],"on_error":"null"}',
            lambda found: found["embeddings"]["float"],
        ),
        ("/pooling", b'{"input":["one",%b],"on_error":"null"}', lambda found: [each["data"] for each in found["data"]]),
    ],
)
def test_it_fails_alone_in_every_dialect(path: str, body: bytes, answer: Any) -> None:
    called = post(path, body % HALF)

    first, second = answer(json.loads(called.body))
    assert (called.status, second) == (200, None)
    assert first


@pytest.mark.holds("Errors of single items")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"input":["a","b"],"on_error":"null","prompt":%b}', "prompt"),
        (b'{"input":["a","b"],"on_error":"null","user":%b}', "user"),
        (b'{"input":["a",%b],"on_error":"fail"}', "input[1]"),
        (b'{"input":["a",%b],"on_error":%b}', "input[1]"),
        (b'{"input":["a",%b,NaN],"on_error":"null"}', "input[1]"),
        (b'{"input":["a",%b],"on_error":"null","dimensions":99}', "input[1]"),
    ],
)
def test_nothing_else_is_taken_with_it(body: bytes, param: str) -> None:
    called = post("/v1/embeddings", body.replace(b"%b", HALF))

    assert (called.status, called.error()["param"]) == (400, param)


@pytest.mark.holds("Errors of single items")
def test_bodies_are_looked_through_in_slices_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, refused = BodyDecoder(), MalformedBody("refused")

    def decode(body: bytes) -> None:
        raise refused

    async def error_of(body: bytes) -> MalformedBody:
        try:
            await decoder.without_wrong_values(body, decode, refused)
        except MalformedBody as error:
            return error
        raise AssertionError

    body = b'{"input":[' + b'"a",' * 1000 + b"%b]}" % HALF
    assert asyncio.run(error_of(body)).param == "input[1000]"
    assert turns_during(error_of(body)) > 100  # some are longer than they should be on a busy machine
    monkeypatch.setattr("server.http.request._MAX_VALUES", 1000)
    assert asyncio.run(error_of(body)) is refused


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_passes_over_a_byte_order_mark(route: Any) -> None:
    def answers(body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, int]:
        called = post(route.path, body, headers, loaded=state_with_everything())
        return called.status, len(called.body) // 100  # times differ

    good = good_body(route.path)
    assert answers(BOM + good) == answers(BOM + b" " + good) == answers(good)
    assert answers(gzip.compress(BOM + good), {"content-encoding": "gzip"}) == answers(good)
    assert post(route.path, BOM + BOM + good).status == 400
    assert answers(BOM + b" " * (1 << 17) + good) == answers(good)


@pytest.mark.holds("Requests and answers", "Errors of single items")
def test_behind_a_byte_order_mark_a_value_is_named_too() -> None:
    assert post("/v1/embeddings", BOM + b'{"input":["a",%b]}' % HALF).error()["param"] == "input[1]"


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/v1/rerank", "/", "/vertex", "/async_predict"])
def test_other_encodings_get_a_sentence(path: str, encoding: str) -> None:
    called = post(path, '{"input":"a"}'.encode(encoding))

    assert (called.status, b"it looks like UTF-16 or UTF-32" in called.body) in ((400, True), (404, False))
    assert called.status == 400 or path == "/async_predict"  # which this edge does not have
