"""Who is turned away at the door and what they are told: 429 by what waits, 503 while nothing computes."""

import asyncio
from typing import Any

import pytest

from batch_manager.messages import RequestRefusal
from server.dialects.table import ROUTES
from server.settings.api_keys import ApiKey, digest
from tests.server.edge import Called, Edge, call, good_body, state_with_everything, worked_on
from wire.vocabulary import RequestClass

PATHS = [route.path for route in ROUTES]
WITHOUT_ENGINE = ("/tokenize", "/decode", "/detokenize", "/v1/tokenize", "/v1/detokenize", "/api/show")
COMPUTING = [path for path in PATHS if path not in WITHOUT_ENGINE]
INTERACTIVE, BULK = RequestClass.INTERACTIVE, RequestClass.BULK
# an edge's budgets are 1 s for interactive work and 10 s for bulk
RATE = 100


def edge_of(**settings: Any) -> Edge:
    edge = Edge(loaded=state_with_everything(), **settings)
    edge.page.tokens_per_second[:] = RATE
    return edge


async def post(edge: Edge, path: str, **headers: str) -> Called:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(edge.app, "POST", path, good_body(path), named)


@pytest.mark.holds("Back-pressure")
@pytest.mark.parametrize("path", COMPUTING)
@pytest.mark.parametrize(
    ("queued", "request_class", "retry_after"),
    [
        ({INTERACTIVE: RATE}, "interactive", None),  # exactly the budget
        ({INTERACTIVE: RATE + 1}, "interactive", "1"),
        ({INTERACTIVE: 8 * RATE}, "interactive", "7"),
        ({INTERACTIVE: 8 * RATE}, "bulk", None),
        ({INTERACTIVE: 8 * RATE, BULK: 8 * RATE}, "bulk", "6"),
        ({BULK: 1000 * RATE}, "interactive", None),  # only bulk waits for bulk
        ({BULK: 1000 * RATE}, "bulk", "990"),
    ],
)
async def test_too_long_a_wait_is_429_and_says_when_to_come_back(
    path: str, queued: dict[RequestClass, int], request_class: str, retry_after: str | None
) -> None:
    edge = edge_of()
    for waiting, num_tokens in queued.items():
        edge.page.admitted_tokens[0, 0, waiting] = num_tokens
    called = await post(edge, path, x_embedline_class=request_class)
    called, num_tokenized = called, len(edge.tokenizers.asked)
    assert called.status == (200 if retry_after is None else 429)
    assert called.headers.get("retry-after") == retry_after
    assert num_tokenized == (retry_after is None)  # refused before anything is tokenized


@pytest.mark.holds("Back-pressure")
@pytest.mark.parametrize("path", WITHOUT_ENGINE)
async def test_what_needs_no_engine_does_not_wait_for_one(path: str) -> None:
    edge = edge_of()
    edge.page.admitted_tokens[:] = 10**9
    assert (await post(edge, path)).status == 200


@pytest.mark.holds("Fair shares")
async def test_answers_to_a_key_with_a_ceiling_say_what_is_left_of_it() -> None:
    edge = edge_of(keys=[ApiKey("limited", digest(b"1"), tokens_per_minute=7), ApiKey("free", digest(b"2"))])
    edge.admission._clock = lambda: 75.0  # a quarter of a minute has passed
    body = b'{"input":"three"}'
    asked = [("1", body), ("2", body), ("1", body), ("1", b"{"), ("3", body)]
    named = [(one, {"authorization": f"Bearer {key}"}) for key, one in asked]
    called = [await call(edge.app, "POST", "/v1/embeddings", one, headers) for one, headers in named]

    assert [one.status for one in called] == [200, 200, 429, 400, 401]
    found = [{name: value for name, value in one.headers.items() if "ratelimit" in name} for one in called]
    left = {
        "x-ratelimit-limit-tokens": "7",
        "x-ratelimit-remaining-tokens": "2",
        "x-ratelimit-reset-tokens": "1m45s",
    }
    assert found == [left, {}, left, left, {}]


@pytest.mark.holds("Back-pressure")
async def test_what_was_let_in_is_not_refused_for_load_later() -> None:
    edge = edge_of()
    edge.tokenizers.gate = edge.managers.gate = asyncio.Event()
    at_work: asyncio.Queue[None] = asyncio.Queue()
    edge.tokenizers.at_work = lambda: at_work.put_nowait(None)
    waiting = asyncio.create_task(post(edge, "/v1/embeddings"))
    await at_work.get()
    edge.page.admitted_tokens[:] = 10**9
    edge.tokenizers.gate.set()
    assert (await waiting).status == 200
    # nor has a batch manager a word for it
    assert {reason.name for reason in RequestRefusal} == {
        "DEADLINE",
        "NO_ENGINE",
        "ENGINE_FAILED",
        "POISON",
        "NON_FINITE",
        "TOO_LONG",
        "ANSWER_TOO_LARGE",
        "STOPPING",
        "TOO_LATE",  # by the request's own deadline
    }


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("path", PATHS)
async def test_one_request_too_many_is_429_on_every_route(path: str) -> None:
    edge = edge_of(max_requests=1)
    with worked_on(edge):
        called = await post(edge, path)
    assert (called.status, called.headers["retry-after"]) == (429, "1")


@pytest.mark.holds("Limits")
async def test_health_facts_and_metrics_are_never_refused_for_load() -> None:
    edge = edge_of(max_requests=1)
    edge.page.admitted_tokens[:] = 10**9
    with worked_on(edge):
        for path in ("/", "/livez", "/readyz", "/health", "/ping", "/info", "/v1/models", "/metrics"):
            assert (await call(edge.app, "GET", path)).status == 200


@pytest.mark.holds("Readiness")
async def test_a_process_that_is_not_ready_is_alive() -> None:
    edge = edge_of(is_loaded=False)
    before = (await call(edge.app, "GET", "/livez")).status
    edge.state.draining = True
    assert [before, (await call(edge.app, "GET", "/livez")).status] == [200, 200]
