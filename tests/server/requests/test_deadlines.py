"""A request's own deadline, on every route that takes one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from server.dialects.table import ROUTES
from server.http.body import Message
from server.requests.errors import DeadlineExceeded
from tests.server.edge import Edge, call, good_body, state_with_everything

PATHS = [route.path for route in ROUTES]
WAITING = [path for path in PATHS if path != "/api/show"]  # which computes nothing
ERROR_SHAPES = {route.path: route.error_shape for route in ROUTES}


def past() -> str:
    return str(int(1000 * time.time()) - 1000)


@pytest.mark.holds("Deadlines")
@pytest.mark.parametrize("path", WAITING)
@pytest.mark.parametrize("name", ["request-timeout-ms", "x-request-timeout-ms", "request-deadline-ms"])
async def test_a_deadline_that_passes_is_504_in_the_routes_own_shape(path: str, name: str) -> None:
    edge = Edge(loaded=state_with_everything())
    edge.tokenizers.gate = asyncio.Event()  # never set
    called = await call(edge.app, "POST", path, good_body(path), {name: past() if "deadline" in name else "5"})
    assert called.status == 504
    expected = ERROR_SHAPES[path](DeadlineExceeded("the request's deadline passed"))
    # /rerank's other errors have keys for several APIs
    assert json.loads(called.body).keys() <= json.loads(bytes(expected.body)).keys()
    # what waited for a tokenizer never comes to an engine
    assert (len(edge.managers.submitted), int(edge.page.admitted_tokens.sum())) == (0, 0)
    assert "retry-after" not in called.headers


@pytest.mark.parametrize("path", PATHS)
async def test_nonsense_in_a_header_is_refused_on_every_route(path: str) -> None:
    names = ("request-timeout-ms", "x-request-timeout-ms", "request-deadline-ms", "x-embedline-class")
    assert set([(await call(Edge().app, "POST", path, good_body(path), {name: "soon"})).status for name in names]) <= {
        400,
        422,
    }


@pytest.mark.holds("Deadlines")
def test_receiving_the_body_is_not_interrupted() -> None:
    """What has passed by then shows when the body is there."""

    async def run() -> tuple[int, bool]:
        edge = Edge()
        edge.tokenizers.gate = asyncio.Event()
        was_read = False

        async def pieces() -> AsyncIterator[Message]:
            nonlocal was_read
            yield {"type": "http.request", "body": b'{"input":', "more_body": True}
            await asyncio.sleep(0.02)  # the deadline is over
            was_read = True
            yield {"type": "http.request", "body": b'"a"}', "more_body": False}

        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/embeddings", "headers": [(b"request-timeout-ms", b"1")]}
        body = pieces()
        await edge.app(scope, lambda: anext(body), send)
        return sent[0]["status"], was_read

    assert asyncio.run(run()) == (504, True)
