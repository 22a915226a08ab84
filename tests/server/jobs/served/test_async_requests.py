"""Async requests of a whole server: what is accepted, what comes of it, and whose it is."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from server.feature import Feature
from server.features.jobs.feature import JOBS
from server.features.jobs.routes import MAX_BODY_BYTES
from server.features.pipelines.feature import PIPELINES
from tests.server.jobs.served.asking import accepted, ended, result, view
from tests.server.jobs.served.hooks import receiving
from tests.server_e2e.expected import FAKE, rows_of
from tests.server_e2e.running import PATIENCE, Server, serving

HELLO = {"input": "hello", "model": "any"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("jobs")
    with serving(*FAKE, "--jobs", str(folder / "kept"), folder=folder) as running:
        yield running


def without_times(body: bytes) -> Any:
    """An answer of /v1/embeddings without what is its own."""
    return {name: value for name, value in json.loads(body).items() if name not in ("id", "created")}


def test_the_result_is_the_routes_own_answer(server: Server) -> None:
    request_id = accepted(server, HELLO)
    found = result(server, request_id)

    assert found.status == 200
    assert without_times(found.body) == without_times(server.request("POST", "/v1/embeddings", HELLO).body)
    assert found.headers["x-embedline-truncated-inputs"] == "0"
    shown = view(server, request_id)
    assert (shown["status"], shown["webhook_status"], shown["errors"]) == ("SUCCEEDED", "NO_WEBHOOK_PROVIDED", [])
    assert shown["created_at"] <= shown["status_at"]


@pytest.mark.parametrize("form", ["header", "field"])
def test_a_result_in_raw_bytes(form: str, server: Server) -> None:
    raw = "application/octet-stream"
    body = {"model_input": HELLO if form == "header" else {**HELLO, "encoding_format": "bytes"}}
    headers = {"accept": raw} if form == "header" else {}
    answer = server.request("POST", "/async_predict", body, **headers)
    found = result(server, answer.json()["request_id"])

    assert found.headers["content-type"] == raw
    assert found.headers["x-embedline-shape"] == "1,64"
    assert np.array_equal(np.frombuffer(found.body, np.float32), rows_of(["hello"])[0])


@pytest.mark.parametrize("prefix", ["", "/production", "/environments/staging", "/deployment/abc", "/development"])
def test_basetens_paths(prefix: str, server: Server) -> None:
    answer = server.request("POST", f"{prefix}/async_predict", {"model_input": HELLO})
    assert answer.status == 202
    assert ended(server, answer.json()["request_id"])["status"] == "SUCCEEDED"
    assert server.request("GET", f"{prefix}/async_queue_status").json()["num_queued_requests"] >= 0


def test_any_route_of_this_server(server: Server) -> None:
    found = result(server, accepted(server, {"inputs": ["hello"]}, route="/tokenize"))
    assert found.json() == server.request("POST", "/tokenize", {"inputs": ["hello"]}).json()


def test_a_request_that_its_route_refuses_has_failed(server: Server) -> None:
    request_id = accepted(server, {"input": "hello", "dimensions": 10_000}, route="/v1/embeddings")
    shown = ended(server, request_id)

    assert shown["status"] == "FAILED"
    assert shown["errors"][0]["code"] == "MODEL_INVALID_INPUT"
    assert "dimensions" in shown["errors"][0]["message"]
    answer = server.request("GET", f"/async_request/{request_id}/result")
    assert (answer.status, answer.json()["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "model_input is missing"),
        ({"model_input": "hello"}, "model_input must be an object"),
        ({"model_input": HELLO, "route": "/v1/nothing"}, "route must be a path"),
        ({"model_input": HELLO, "route": "/async_predict"}, "route must be a path"),
        ({"model_input": HELLO, "priority": 3}, "priority"),
        ({"model_input": HELLO, "max_time_in_queue_seconds": 9}, "max_time_in_queue_seconds"),
        ({"model_input": HELLO, "inference_retry_config": {"max_attempts": 11}}, "max_attempts"),
        ({"model_input": HELLO, "inference_retry_config": {"attempts": 1}}, "`attempts`"),
        ({"model_input": HELLO, "priorities": 1}, "`priorities`"),
    ],
)
def test_wrong_bodies_are_refused_by_name(body: Any, words: str, server: Server) -> None:
    answer = server.request("POST", "/async_predict", body)
    assert answer.status == 400
    assert words in answer.json()["error"]["message"]


def test_a_body_that_is_too_large(server: Server) -> None:
    body = {"model_input": {"input": "a" * MAX_BODY_BYTES}}
    assert server.request("POST", "/async_predict", body).status == 413


def test_a_body_that_is_no_utf8(server: Server) -> None:
    answer = server.request("POST", "/async_predict", b'{"model_input": {"input": "\xff"}}')
    assert (answer.status, answer.json()["error"]["param"]) == (400, "model_input.input")
    assert answer.json()["message"].startswith("model_input.input is not valid JSON in UTF-8")


def test_an_idempotency_key_keeps_one_request(server: Server) -> None:
    body = {"model_input": HELLO, "priority": 2}
    first, second = (server.request("POST", "/async_predict", body, idempotency_key="once") for _ in range(2))
    other = server.request("POST", "/async_predict", {"model_input": HELLO}, idempotency_key="once")

    assert first.json() == second.json()
    assert (other.status, other.json()["error"]["code"]) == (409, "conflict")
    assert server.request("POST", "/async_predict", body, idempotency_key="two words").status == 400


def test_two_idempotency_keys_are_refused(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.putrequest("POST", "/async_predict")
    body = json.dumps({"model_input": HELLO}).encode()
    for name, value in (("content-length", len(body)), ("idempotency-key", "a"), ("idempotency-key", "b")):
        connection.putheader(name, str(value))
    connection.endheaders(body)
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["error"]["param"]) == (400, "idempotency-key")
    connection.close()


def _page_with(server: Server, line: str) -> str:
    """The page of metrics that has it: a process tells of itself once a second, and who asks often gets an old page."""
    while line not in (page := server.request("GET", "/metrics").body.decode()):
        pass
    return page


def test_metrics_and_logs_have_the_route_without_its_id(server: Server) -> None:
    request_id = accepted(server, HELLO)
    result(server, request_id)
    assert request_id not in _page_with(server, 'route="/async_request/{request_id}/result"')


def test_an_unknown_id(server: Server) -> None:
    for method, path in (
        ("GET", "/async_request/abc"),
        ("GET", "/async_request/abc/result"),
        ("DELETE", "/async_request/abc"),
    ):
        answer = server.request(method, path)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


def test_only_a_queued_request_can_be_canceled(server: Server) -> None:
    request_id = accepted(server, HELLO)
    assert ended(server, request_id)["status"] == "SUCCEEDED"
    answer = server.request("DELETE", f"/async_request/{request_id}")
    assert (answer.status, answer.json()["error"]["code"]) == (409, "conflict")


def test_the_queue_is_on_the_page_of_metrics(server: Server) -> None:
    ended(server, accepted(server, HELLO))
    numbers = server.request("GET", "/jobs").json()
    assert set(numbers["queued"]) == {"0", "1", "2"}
    assert numbers["quota_bytes"] == 10 << 30
    assert sum(numbers["batches"]["open"].values()) == numbers["files"]["count"] == 0
    held = f'embedline_jobs_held_bytes{{process="jobs 0"}} {numbers["held_bytes"]}.0'
    page = _page_with(server, held)
    assert 'embedline_jobs_queued{priority="0",process="jobs 0"} 0' in page
    assert 'embedline_jobs_batches_open{process="jobs 0",status="validating"} 0' in page
    assert 'embedline_requests_total{class="none",code="202",route="/async_predict"}' in page


@pytest.mark.holds("Webhooks reach public addresses alone")
def test_a_private_address_needs_the_flag(server: Server) -> None:
    with receiving() as receiver:
        body = {"model_input": HELLO, "webhook_endpoint": receiver.url}
        refused = server.request("POST", "/async_predict", body)
        assert (refused.status, refused.json()["error"]["param"]) == (400, "webhook_endpoint")
        behind_a_name = f"https://localhost:{receiver.server_port}/"
        request_id = accepted(server, HELLO, webhook_endpoint=behind_a_name)
        while (shown := ended(server, request_id))["webhook_status"] == "PENDING":
            continue
        assert shown["webhook_status"] == "FAILED"
        assert result(server, request_id).status == 200
        assert receiver.received.empty()


@pytest.mark.parametrize("feature", [JOBS, PIPELINES], ids=lambda feature: feature.name)
def test_without_the_flag_the_routes_say_how_to_have_them(feature: Feature, fake_server: Server) -> None:
    for method, path in feature.routes:
        answer = fake_server.request(method, path.format(request_id="a", file_id="a", batch_id="a", name="a"))
        assert answer.status == 404
        assert f"{feature.flag} {feature.switch[1]}" in answer.json()["error"]["message"]
