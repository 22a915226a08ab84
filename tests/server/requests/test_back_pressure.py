"""Who is turned away at the door and what they are told: 429 by what waits, 503 while nothing computes."""

import asyncio
from collections.abc import Awaitable, Callable
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


def with_edge(test: Callable[[Edge], Awaitable[Any]], **settings: Any) -> Any:
    async def run() -> Any:
        edge = Edge(loaded=state_with_everything(), **settings)
        edge.page.tokens_per_second[:] = RATE
        return await test(edge)

    return asyncio.run(run())


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
def test_too_long_a_wait_is_429_and_says_when_to_come_back(
    path: str, queued: dict[RequestClass, int], request_class: str, retry_after: str | None
) -> None:
    async def test(edge: Edge) -> tuple[Called, int]:
        for waiting, num_tokens in queued.items():
            edge.page.admitted_tokens[0, 0, waiting] = num_tokens
        called = await post(edge, path, x_embedline_class=request_class)
        return called, len(edge.tokenizers.asked)

    called, num_tokenized = with_edge(test)
    assert called.status == (200 if retry_after is None else 429)
    assert called.headers.get("retry-after") == retry_after
    assert num_tokenized == (retry_after is None)  # refused before anything is tokenized


@pytest.mark.holds("Back-pressure")
@pytest.mark.parametrize("path", WITHOUT_ENGINE)
def test_what_needs_no_engine_does_not_wait_for_one(path: str) -> None:
    async def test(edge: Edge) -> int:
        edge.page.admitted_tokens[:] = 10**9
        return (await post(edge, path)).status

    assert with_edge(test) == 200


@pytest.mark.holds("Fair shares")
def test_answers_to_a_key_with_a_ceiling_say_what_is_left_of_it() -> None:
    keys = [ApiKey("limited", digest(b"1"), tokens_per_minute=7), ApiKey("free", digest(b"2"))]

    async def test(edge: Edge) -> list[Called]:
        edge.admission._clock = lambda: 75.0  # a quarter of a minute has passed
        body = b'{"input":"three"}'
        asked = [("1", body), ("2", body), ("1", body), ("1", b"{"), ("3", body)]
        named = [(one, {"authorization": f"Bearer {key}"}) for key, one in asked]
        return [await call(edge.app, "POST", "/v1/embeddings", one, headers) for one, headers in named]

    called = with_edge(test, keys=keys)

    assert [one.status for one in called] == [200, 200, 429, 400, 401]
    found = [{name: value for name, value in one.headers.items() if "ratelimit" in name} for one in called]
    left = {
        "x-ratelimit-limit-tokens": "7",
        "x-ratelimit-remaining-tokens": "2",
        "x-ratelimit-reset-tokens": "1m45s",
    }
    assert found == [left, {}, left, left, {}]


@pytest.mark.holds("Back-pressure")
def test_a_requests_own_tokens_are_not_counted() -> None:
    async def test(edge: Edge) -> int:
        body = b'{"input":"' + b"a" * 900 + b'"}'
        edge.page.tokens_per_second[:] = 0.01
        return (await call(edge.app, "POST", "/v1/embeddings", body)).status

    assert with_edge(test) == 200


@pytest.mark.holds("Back-pressure")
def test_before_a_rate_is_known_nobody_is_refused() -> None:
    async def test(edge: Edge) -> int:
        edge.page.tokens_per_second[:] = 0
        edge.page.admitted_tokens[:] = 10**9
        return (await post(edge, "/v1/embeddings")).status

    assert with_edge(test) == 200


@pytest.mark.holds("Back-pressure")
def test_what_was_let_in_is_not_refused_for_load_later() -> None:
    async def test(edge: Edge) -> int:
        edge.tokenizers.gate = edge.managers.gate = asyncio.Event()
        at_work: asyncio.Queue[None] = asyncio.Queue()
        edge.tokenizers.at_work = lambda: at_work.put_nowait(None)
        waiting = asyncio.create_task(post(edge, "/v1/embeddings"))
        await at_work.get()
        edge.page.admitted_tokens[:] = 10**9
        edge.tokenizers.gate.set()
        return (await waiting).status

    assert with_edge(test) == 200
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
def test_one_request_too_many_is_429_on_every_route(path: str) -> None:
    async def test(edge: Edge) -> Called:
        with worked_on(edge):
            return await post(edge, path)

    called = with_edge(test, max_requests=1)
    assert (called.status, called.headers["retry-after"]) == (429, "1")


@pytest.mark.holds("Limits")
def test_health_facts_and_metrics_are_never_refused_for_load() -> None:
    async def test(edge: Edge) -> list[int]:
        edge.page.admitted_tokens[:] = 10**9
        with worked_on(edge):
            paths = ("/", "/livez", "/readyz", "/health", "/ping", "/info", "/v1/models", "/metrics")
            return [(await call(edge.app, "GET", path)).status for path in paths]

    assert with_edge(test, max_requests=1) == [200] * 8


@pytest.mark.holds("Readiness")
@pytest.mark.parametrize("path", PATHS)
def test_before_the_model_is_loaded_every_route_is_503_and_reads_no_body(path: str) -> None:
    async def test(edge: Edge) -> Called:
        return await call(edge.app, "POST", path, [])  # reading would end as a client that left

    called = with_edge(test, is_loaded=False)
    assert called.status == 503
    assert int(called.headers["retry-after"]) >= 1


@pytest.mark.holds("Readiness")
def test_a_process_that_is_not_ready_is_alive() -> None:
    async def test(edge: Edge) -> list[int]:
        before = (await call(edge.app, "GET", "/livez")).status
        edge.state.draining = True
        return [before, (await call(edge.app, "GET", "/livez")).status]

    assert with_edge(test, is_loaded=False) == [200, 200]
