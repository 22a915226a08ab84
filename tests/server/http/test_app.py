"""The application of a frontend, in one process: its routes, and every way in which a request can end."""

import asyncio
import json
import logging

import pytest

from server.feature import Feature
from server.features.table import FEATURES
from server.http.body import STOPPING
from tests.server.edge import Called, Edge, answered, call, ready_state

BODY = b'{"input":["one","three"]}'
PATH = "/v1/embeddings"
EMBEDDINGS_PATHS = ("/v1/embeddings", "/embeddings")


def answer(method: str, path: str, body: bytes = b"", **headers: str) -> Called:
    return answered(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.holds("Identical requests")
@pytest.mark.parametrize("has_joined", [False, True])
async def test_an_answer_says_whether_it_was_computed_for_itself(has_joined: bool) -> None:
    edge = Edge()
    edge.managers.has_joined = has_joined
    assert (await call(edge.app, "POST", PATH, BODY)).headers.get("x-embedline-joined") == ("1" if has_joined else None)


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("path", [*EMBEDDINGS_PATHS, *(f"{path}/" for path in EMBEDDINGS_PATHS)])
def test_the_hot_route_by_all_its_names(path: str) -> None:
    called = answer("POST", path, BODY)

    assert called.status == 200
    assert called.headers["content-length"] == str(len(called.body))
    rows = [item["embedding"] for item in json.loads(called.body)["data"]]
    assert rows == [[3.0] * 8, [5.0] * 8]


@pytest.mark.holds("Errors")
def test_other_methods_of_the_hot_route() -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"):
        for path in (*EMBEDDINGS_PATHS, f"{PATH}/"):
            called = answer(method, path, BODY)

            assert called.status == 405
            assert called.headers["allow"] == "POST"
            assert called.error()["code"] == "method_not_supported"
            assert called.error()["message"] == "this route takes POST"


@pytest.mark.parametrize("path", ["/async_request/0", "/v1/files/0"])
def test_a_path_with_two_methods_names_both(path: str) -> None:
    called = answer("OPTIONS", path)

    assert called.status == 405
    assert called.headers["allow"] == "DELETE, GET"
    assert called.error()["message"] == "this route takes GET or DELETE"


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/v1/embeddings", "/v1/embeddings"),
        ("/V1/Embeddings/", "/v1/embeddings"),
        ("/apis/re-rank", "/rerank"),
        ("/redyz", "/readyz"),
        ("/v1/chat/completions", None),
        ("/" + "embed" * 100, None),
    ],
)
def test_an_unknown_route_names_the_nearest_one(path: str, nearest: str | None) -> None:
    message = answer("POST", path, BODY).error()["message"]
    assert message == "no such route" + (f"; the nearest one is {nearest}" if nearest else "")


def test_the_slow_routes() -> None:
    assert [answer("GET", path).status for path in ("/livez", "/readyz", "/health", "/docs")] == [200] * 4
    assert answer("GET", "/metrics").body == b"metrics of the whole server\n"
    info = json.loads(answer("GET", "/info").body)
    assert (info["ready"], info["max_client_batch_size"]) == (True, 4)


@pytest.mark.holds("Readiness", "Shutdown")
@pytest.mark.parametrize("why", ["loading", "not ready", "no engine", "draining"])
async def test_readiness_is_honest(why: str) -> None:
    edge = Edge()
    match why:
        case "loading":
            edge.state.update(ready_state(ready=False, reason="no engine is ready", models=[]))
        case "not ready":
            edge.state.update(ready_state(ready=False, reason="no tokenizer is ready"))
        case "no engine":
            edge.page.engines_ready[:] = 0  # before the supervisor has said so
        case "draining":
            edge.state.draining = True
    called = await call(edge.app, "GET", "/readyz")
    assert called.status == 503
    assert int(called.headers["retry-after"]) >= 1
    assert called.body


@pytest.mark.holds("Readiness")
async def test_startupz_is_503_until_it_was_ready_once() -> None:
    edge = Edge()
    statuses = []
    for ready in (False, True, False):
        edge.state.update(ready_state(ready=ready, reason=None if ready else "no engine is ready"))
        statuses.append((await call(edge.app, "GET", "/startupz")).status)
    assert statuses == [503, 200, 200]


async def test_before_the_model_is_loaded_there_is_503_and_the_body_is_not_read() -> None:
    called = await call(Edge(is_loaded=False).app, "POST", PATH, [])  # reading would end as a client that left
    assert called.status == 503
    assert called.error()["code"] == "not_ready"
    assert "retry-after" in called.headers


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("status", "param", "body", "headers"),
    [
        (400, "input", b"{}", {}),
        (400, "request-timeout-ms", BODY, {"request_timeout_ms": "soon"}),
        (400, "x-embedline-class", BODY, {"x_embedline_class": "urgent"}),
        (413, None, BODY, {"content_length": "1001"}),
        (413, None, b" " * 1001, {}),
        (415, "content-encoding", BODY, {"content_encoding": "br"}),
    ],
)
def test_refusals(status: int, param: str | None, body: bytes, headers: dict[str, str]) -> None:
    called = answer("POST", PATH, body, **headers)

    assert called.status == status
    assert called.error()["param"] == param


@pytest.mark.holds("Errors")
def test_a_failure_of_our_own_says_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    error = ZeroDivisionError("an inner detail")
    with caplog.at_level(logging.ERROR):
        called = answered("POST", PATH, BODY, before=lambda edge: setattr(edge.managers, "error", error))

    assert called.status == 500
    assert called.error()["type"] == "server_error"
    assert b"inner detail" not in called.body
    assert "an inner detail" in caplog.text


async def test_each_request_is_counted_by_its_route_and_status() -> None:
    edge = Edge()
    await call(edge.app, "POST", PATH, BODY)
    await call(edge.app, "POST", f"{PATH}/", b'{"input":"' + b"x" * 20 + b'"}')
    await call(edge.app, "POST", "/embeddings", b"{}")
    await call(edge.app, "GET", "/livez")
    drained = edge.metrics.drain()
    assert {tuple(count) for count in drained["counts"]} >= {
        ("embedline_requests_total", PATH, "interactive", "200", 2),
        ("embedline_requests_total", "/embeddings", "none", "400", 1),
        ("embedline_requests_total", "/livez", "none", "200", 1),
        ("embedline_input_tokens_total", "the-model", 8 + 20),
        ("embedline_truncated_inputs_total", "the-model", 1),
    }
    assert {tuple(key) for *key, _ in drained["histograms"]} >= {
        ("embedline_request_duration_seconds", PATH),
        ("embedline_request_duration_seconds", "/embeddings"),
        ("embedline_request_duration_seconds", "/livez"),
    }


async def test_a_client_that_leaves_while_it_sends_is_counted_and_nothing_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    edge = Edge()
    assert (await call(edge.app, "POST", PATH, [])).status == 0
    counts = edge.metrics.drain()["counts"]

    assert counts == [
        ["embedline_requests_total", PATH, "none", "499", 1],
        ["embedline_cancelled_total", "read", 1],
    ]
    assert caplog.records == []


@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize(("why", "status"), [(None, 499), (STOPPING, 503)])
async def test_a_cancelled_request_is_answered_where_the_server_cant_wait(
    why: str | None, status: int, draining: bool
) -> None:
    edge = Edge()
    edge.managers.gate = asyncio.Event()
    waiting = asyncio.create_task(call(edge.app, "POST", PATH, BODY))
    await edge.managers.arrivals.get()
    edge.state.draining = draining
    waiting.cancel(why)
    (called,) = await asyncio.gather(waiting, return_exceptions=True)
    if status == 503:
        assert isinstance(called, Called)
        assert called.error()["code"] == "not_ready"
    else:
        assert isinstance(called, asyncio.CancelledError)
    counts = edge.metrics.drain()["counts"]
    assert ["embedline_requests_total", PATH, "interactive", str(status), 1] in counts
    assert ["te_requests", "batch", "error", 1] in counts
    assert (["embedline_cancelled_total", "queue", 1] in counts) == (status == 499)


async def test_who_can_not_be_waited_for_is_told_so_in_the_shape_that_the_body_chose() -> None:
    edge = Edge()
    edge.managers.gate = asyncio.Event()
    waiting = asyncio.create_task(call(edge.app, "POST", "/invocations", b'{"input":"a"}'))
    await edge.managers.arrivals.get()
    waiting.cancel(STOPPING)
    assert (await waiting).error()["code"] == "not_ready"  # as OpenAI's clients read it


@pytest.mark.holds("Limits")
async def test_the_body_is_taken_before_it_is_answered_and_held_until_then() -> None:
    """Bodies of open requests count against the limit for all of them together: four times 1,000 bytes here."""
    edge = Edge()
    edge.managers.gate = asyncio.Event()
    large = [b'{"input":"a","user":"', b"x" * 950, b'"}']
    waiting = [asyncio.create_task(call(edge.app, "POST", PATH, large)) for _ in range(4)]
    for _ in waiting:
        await edge.managers.arrivals.get()
    refused = await call(edge.app, "POST", PATH, large)
    assert "retry-after" in refused.headers
    edge.managers.gate.set()
    statuses = [(await task).status for task in waiting]
    last = await call(edge.app, "POST", PATH, large)
    assert [refused.status, *statuses, last.status] == [429, 200, 200, 200, 200, 200]


async def test_a_request_is_open_from_its_head_to_its_answers_last_byte() -> None:
    edge = Edge(max_requests=1)
    edge.managers.gate = asyncio.Event()
    first = asyncio.create_task(call(edge.app, "POST", PATH, BODY))
    await edge.managers.arrivals.get()
    assert (await call(edge.app, "POST", PATH, BODY)).status == 429
    edge.managers.gate.set()
    assert (await first).status == 200
    assert (await call(edge.app, "POST", PATH, BODY)).status == 200


def test_pages_that_other_servers_have() -> None:
    assert set(json.loads(answer("GET", "/version").body)) == {"version"}
    ping = answer("POST", "/ping")
    assert (ping.status, json.loads(ping.body)) == (200, {"status": "ok"})


ROUTES_OF_FEATURES = [(feature, *place) for feature in FEATURES for place in feature.routes]


@pytest.mark.parametrize("body", [b"", b"{}", b"not json"])
@pytest.mark.parametrize(("feature", "method", "path"), ROUTES_OF_FEATURES)
def test_a_route_of_a_feature_that_is_off_names_its_flag_whatever_is_sent(
    feature: Feature, method: str, path: str, body: bytes
) -> None:
    called = answer(method, path.replace("{", "").replace("}", ""), body)

    assert called.status == 404
    assert called.error()["code"] == "unknown_url"
    assert feature.flag in called.error()["message"]
