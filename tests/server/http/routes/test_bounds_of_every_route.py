"""Every bound on every route, from the tables of routes themselves: bytes, items and owner.

Each route gets a body that stops coming, an answer that nobody reads, many tiny items, and a second key beside one that
has taken all it can get. A route that is added later is walked too.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from server.dialects.answers import Answer, openai_error
from server.dialects.route import Route
from server.dialects.table import PLAIN_ROUTES, ROUTES
from server.features.jobs.routes import JobsPart
from server.features.rpc import Caller, Reply
from server.frontend.parts import Part
from server.http import body
from server.http.app import App
from server.http.body import WRITE_BUFFER_BYTES, Message
from server.http.request import HttpRequest
from server.requests.errors import BodyTooSlow
from server.requests.limits import OpenRequest
from server.requests.row_memory import HeldMemory
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Edge, all_routes, call, good_body, scope_of, state_with_everything
from tests.tiers import full_but
from wire.vocabulary import RequestClass

KEYS = [ApiKey("a", digest(b"key-a")), ApiKey("b", digest(b"key-b"))]
AS_A, AS_B = {"authorization": "Bearer key-a"}, {"authorization": "Bearer key-b"}
ERROR_SHAPES = {route.path: route.error_shape for route in ROUTES}
READING = {*ERROR_SHAPES, "/async_predict", "/v1/files", "/v1/batches"} - {"/embeddings_image", "/embeddings_audio"}
LARGE_ROWS = np.random.default_rng(3).standard_normal((1, 60_000), np.float32)
LARGE = b"x" * (4 * WRITE_BUFFER_BYTES)
FORM = b'--c\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n{}\r\n'
UPLOAD = {"content-type": "multipart/form-data; boundary=c"}


class Jobs(Caller):
    """Has one large file and one large result, and takes note of what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def call(self, what: str, owner: str, **fields: Any) -> Reply:
        self.asked.append(what)
        size = 3 * len(LARGE)
        result = {"status_code": 200, "headers": [], "content_type": "application/json", "bytes": size}
        counts = {"queued": [0, 0, 0], "in_progress": 0, "canceled": True}
        view = {"created_at": 1.0, "status_at": 2.0}
        given = {"id": "file-1", "file_id": "file-1", "bytes": size, "request_id": "1", "result": result, "view": view}
        offset = fields.get("offset", 0)
        return Reply({**given, **counts, **view}, LARGE if what in ("file_read", "result") and offset < size else b"")


EVERY_ROUTE = sorted((route.method, re.sub(r"{(\w+)[^}]*}", r"\1", route.path)) for route in all_routes())
SOME_ROUTES = full_but([("POST", "/v1/embeddings"), ("POST", "/v1/files"), ("POST", "/async_predict")], EVERY_ROUTE)


def edge(jobs: Jobs | None = None, **changes: Any) -> Edge:
    given = {"max_bytes": 1 << 20, "loaded": state_with_everything(), **changes}
    return Edge(parts={"jobs": JobsPart(jobs or Jobs())}, **given)


async def silent(
    app: App,
    method: str,
    path: str,
    *,
    headers: dict[str, str] | None = None,
    first: bytes = b"{",
    look: Callable[[list[Message]], object] = len,
) -> int:
    """The status for a client whose body begins and never goes on; 0 if the answer never began. `look` sees it all."""
    sent: list[Message] = []
    pieces: list[Message] = [{"type": "http.request", "body": first, "more_body": True}]

    async def receive() -> Message:
        if not pieces:
            await asyncio.Event().wait()
        return pieces.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope_of(method, path, {**(headers or {}), "content-length": "1000"}), receive, send)
    look(sent)
    return int(sent[0]["status"]) if sent else 0


async def settled() -> None:
    """Until everybody waits: nothing here waits for what is outside of the loop."""
    for _ in range(100):
        await asyncio.sleep(0)


def body_of(path: str) -> tuple[bytes, dict[str, str]]:
    """The first piece of a body that the route reads on after, and its headers."""
    return (FORM, UPLOAD) if path == "/v1/files" else (b"{", {})


@pytest.mark.holds("Every bound", "Errors")
@pytest.mark.parametrize(("method", "path"), EVERY_ROUTE)
async def test_a_body_that_stops_coming_ends_the_request(
    method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "_PIECE_SECONDS", 0.02)
    first, headers = body_of(path)
    answer: list[Message] = []

    made = edge(jobs=(jobs := Jobs()))
    status = await silent(made.app, method, path, headers=headers, first=first, look=answer.extend)
    if path == "/v1/files" and method == "POST":
        assert jobs.asked == ["file_begin", "file_abandon"]
    assert made.admission.requests.num_open == 0
    if method == "POST" and path in READING:  # the others have answered without it
        assert status == 408
    if method == "POST" and path in ERROR_SHAPES and path in READING:
        start, content = answer
        assert (b"connection", b"close") in start["headers"]
        expected = ERROR_SHAPES[path](BodyTooSlow("the body is too slow"))
        assert json.loads(bytes(content["body"])).keys() == json.loads(bytes(expected.body)).keys()


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("path", [path for method, path in EVERY_ROUTE if method == "GET"])
async def test_head_reads_one_piece_at_most(path: str) -> None:
    jobs = Jobs()

    await call(edge(jobs=jobs).app, "HEAD", path)
    assert len(jobs.asked) == len(set(jobs.asked)), "it went on reading what nobody is sent"


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("reads", ["stream", "read"])
async def test_a_route_that_is_added_later_has_the_clock_too(reads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_PIECE_SECONDS", 0.02)

    async def later(call: HttpRequest) -> Answer:
        if reads == "stream":
            return Answer(200, [], b"".join([piece async for piece in call.stream()]))
        return Answer(200, [], await call.read(lambda _, body: body, goes_on=True))

    part = Part()
    part.routes = [Route(path="/later", answer=later, error_shape=openai_error, summary="")]
    made = Edge(parts={"jobs": part})
    assert await silent(made.app, "POST", "/later", first=FORM) == 408


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize(("method", "path"), SOME_ROUTES)
async def test_silent_clients_take_nobodys_place(method: str, path: str) -> None:
    """More of them than there are places, with and without keys."""
    first, headers = body_of(path)
    for keys in ([], KEYS):
        made = edge(max_requests=2, keys=keys)
        tasks = [
            asyncio.ensure_future(silent(made.app, method, path, headers=headers | AS_A, first=first)) for _ in range(6)
        ]
        await settled()
        found = []
        for named in (AS_A, AS_B):
            answer = await call(made.app, "POST", "/v1/embeddings", good_body("/v1/embeddings"), named)
            pieces = await call(made.app, "POST", "/v1/embeddings", pieces_of(good_body("/v1/embeddings")), named)
            found += [answer.status, pieces.status]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert made.admission.requests.num_open == 0
        assert found == [200] * 4


def pieces_of(content: bytes) -> list[bytes]:
    return [content[:5], content[5:]]


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("path", ERROR_SHAPES)
async def test_a_key_that_has_taken_all_places_takes_no_other_keys(path: str) -> None:
    made = edge(max_requests=4, keys=KEYS)
    others = [OpenRequest(made.admission.requests) for _ in range(4)]
    for other in others:
        other.__enter__()
        other.let_in("a")
    assert [(await call(made.app, "POST", path, good_body(path), named)).status for named in (AS_A, AS_B)] == [429, 200]


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("path", ERROR_SHAPES)
async def test_a_key_whose_bodies_take_all_room_leaves_others_theirs(path: str) -> None:
    made = edge(max_bytes=200_000, keys=KEYS)
    padding = b'{"other": "' + b"x" * 100_000 + b'", '
    sent = [padding, good_body(path)[1:]]
    with made.shared.bodies.of("a").held(400_000):
        taken, others = [(await call(made.app, "POST", path, sent, named)).status for named in (AS_A, AS_B)]
    assert taken == 429
    assert others in (200, 400, 422)  # a route may not know the field


async def watch_answer(made: Edge, method: str, path: str, headers: dict[str, str]) -> tuple[int, int, int]:
    """The status, the bytes of an answer, and the least that was held while a piece of a large one left."""
    held, status, size, least = made.admission, 0, 0, 1 << 40

    async def send(message: Message) -> None:
        nonlocal status, size, least
        if message["type"] == "http.response.start":
            status = message["status"]
        elif len(message.get("body", b"")) > WRITE_BUFFER_BYTES // 2:
            size += len(message["body"])
            least = min(least, sum(held.row_memory_of(one).num_held_bytes for one in RequestClass))

    content = good_body(path) if path in ERROR_SHAPES else b""
    pieces: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if not pieces:
            await asyncio.Event().wait()
        return pieces.pop()

    await made.app(scope_of(method, path, headers), receive, send)
    return status, size, least


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize(("method", "path"), SOME_ROUTES)
async def test_what_leaves_of_a_large_answer_counts_until_it_is_read(method: str, path: str) -> None:
    made = edge(max_held_bytes=1 << 30)
    made.managers.rows = LARGE_ROWS
    _, size, least = await watch_answer(made, method, path, {})
    if size > WRITE_BUFFER_BYTES:
        assert least > WRITE_BUFFER_BYTES
    assert all(made.admission.row_memory_of(one).num_held_bytes == 0 for one in RequestClass)


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("path", ["/v1/files/file_id/content", "/async_request/request_id/result", "/openapi.json"])
async def test_an_answer_that_finds_no_room_does_not_begin_and_another_keys_does(path: str) -> None:
    made = edge(max_held_bytes=4 << 20, keys=KEYS)
    room = made.admission.row_memory_of(RequestClass.BULK)
    unread = HeldMemory(room, "a")
    unread.change(room.max_bytes)
    assert [(await watch_answer(made, "GET", path, named))[0] for named in (AS_A, AS_B)] == [503, 200]


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("path", ERROR_SHAPES)
async def test_many_tiny_items_are_refused_before_anything_is_tokenized(path: str) -> None:
    """In every field that takes a list, and where the example has one text or one list."""
    (example,) = (route.example for route in ROUTES if route.path == path)
    for name in example:
        for tiny in ("a", [1], {"inputs": "a"}):
            made = edge()
            called = await call(made.app, "POST", path, json.dumps({**example, name: [tiny] * 1000}).encode())
            assert called.status in (400, 413, 422) or called.status < 300
            assert sum(len(texts) for texts, _ in made.tokenizers.asked) <= 8  # --max-client-batch-size is 4; pairs
            assert len(made.managers.submitted) <= 4


def test_the_walk_has_every_route() -> None:
    paths = {path for _, path in EVERY_ROUTE}
    assert {route.path for route in PLAIN_ROUTES} <= paths
    assert {"/v1/files", "/v1/batches", "/async_predict", "/metrics", "/info", "/pipelines/name"} <= paths


async def test_who_has_waited_longest_gives_way_to_others_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    made = edge(max_requests=2, keys=KEYS)
    tasks = []
    for named in (AS_A, AS_B, AS_A, AS_A):
        tasks.append(asyncio.ensure_future(silent(made.app, "POST", "/v1/embeddings", headers=named)))
        await settled()
    ended = [task.result() for task in tasks if task.done()]
    is_first = tasks[0].done()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (ended, is_first) == ([429], True)
