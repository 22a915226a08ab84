"""Webhooks of a whole server, to a receiver on this machine: what it gets, and where they may not go."""

import base64
import hmac
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.server.jobs.served.asking import accepted, ended, result
from tests.server.jobs.served.hooks import receiving
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import PATIENCE, Server, serving

KEY = b"a key of thirty-two bytes, or so"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
HELLO = {"input": "hello", "model": "any"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("webhooks")
    (folder / "secrets").write_text(SECRET)
    flags = ("--jobs", str(folder / "kept"), "--jobs-private-webhooks", "--jobs-webhook-secrets", "secrets")
    with serving(*FAKE, *flags, folder=folder) as running:
        yield running


def test_a_webhook_has_the_result_and_is_signed(server: Server) -> None:
    with receiving() as receiver:
        request_id = accepted(server, HELLO, webhook_endpoint=receiver.url)
        got = receiver.next()

    assert ended(server, request_id)["status"] == "SUCCEEDED"
    fields = msgspec.json.decode(got.body, type=dict[str, msgspec.Raw])
    assert bytes(fields["data"]) == result(server, request_id).body
    assert msgspec.json.decode(fields["request_id"]) == got.headers["webhook-id"] == request_id
    signed = f"{request_id}.{got.headers['webhook-timestamp']}.".encode() + got.body
    assert got.headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(KEY, signed, "sha256")).decode()
    assert got.headers["x-baseten-signature"] == "v1=" + hmac.digest(SECRET.encode(), got.body, "sha256").hex()


def test_a_request_that_failed_has_a_webhook_with_its_errors(server: Server) -> None:
    with receiving() as receiver:
        body = {"input": "hello", "dimensions": 10_000}
        request_id = accepted(server, body, route="/v1/embeddings", webhook_endpoint=receiver.url)
        (error,) = msgspec.json.decode(receiver.next().body)["errors"]

    assert ended(server, request_id)["status"] == "FAILED"
    assert error["code"] == "MODEL_INVALID_INPUT"


@pytest.mark.faults
@pytest.mark.full  # waits until the lease of the first attempt is over
@pytest.mark.holds("A webhook is sent until it is received")
def test_a_webhook_is_sent_again_when_the_jobs_process_was_killed_meanwhile(server: Server) -> None:
    with receiving() as receiver:
        receiver.may_answer.clear()
        request_id = accepted(server, HELLO, webhook_endpoint=receiver.url)
        first = receiver.next()
        server.kill("jobs 0")
        receiver.may_answer.set()
        second = receiver.next()

    assert second.body == first.body
    assert second.headers["webhook-id"] == first.headers["webhook-id"] == request_id


@pytest.mark.full
def test_a_stop_does_not_wait_for_a_silent_receiver(tmp_path: Path) -> None:
    flags = (*FAKE, "--jobs", str(tmp_path / "kept"), "--jobs-private-webhooks")
    with receiving() as receiver:
        receiver.may_answer.clear()
        with serving(*flags, folder=tmp_path) as first:
            request_id = accepted(first, HELLO, webhook_endpoint=receiver.url)
            cut = receiver.next()
            assert first.stop() == 0
        first.log.wait_for(r"1 webhook\(s\) had no answer yet")
        assert not any("no answer within" in line for line in first.log.lines)  # it was not waited for to the end
        receiver.may_answer.set()
        with serving(*flags, folder=tmp_path) as second:
            again = receiver.next()
            assert ended(second, request_id)["status"] == "SUCCEEDED"
    assert again.body == cut.body
    assert again.headers["webhook-id"] == cut.headers["webhook-id"] == request_id


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://example.org/", "must begin with https://"),
        ("https://user:word@example.org/", "user or a password"),
    ],
)
def test_a_url_that_can_not_be_is_refused_by_name(url: str, words: str, server: Server) -> None:
    answer = server.request("POST", "/async_predict", {"model_input": HELLO, "webhook_endpoint": url})
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, "webhook_endpoint")
    assert words in error["message"]
    assert url not in error["message"]


@pytest.mark.holds("Webhooks reach public addresses alone")
def test_a_private_address_needs_the_flag(tmp_path: Path) -> None:
    with serving(*FAKE, "--jobs", str(tmp_path / "kept"), folder=tmp_path) as server, receiving() as receiver:
        body = {"model_input": HELLO, "webhook_endpoint": receiver.url}
        assert server.request("POST", "/async_predict", body).status == 400
        behind_a_name = f"https://localhost:{receiver.server_port}/"
        request_id = accepted(server, HELLO, webhook_endpoint=behind_a_name)
        while (shown := ended(server, request_id))["webhook_status"] == "PENDING":
            continue
        assert shown["webhook_status"] == "FAILED"
        assert result(server, request_id).status == 200
        assert receiver.received.empty()


def test_secrets_that_can_not_be_end_the_start(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("whsec_short")
    server = Server(*FAKE, "--jobs", "kept", "--jobs-webhook-secrets", "secrets", folder=tmp_path)
    try:
        server.log.wait_for("--jobs-webhook-secrets, line 1: a secret is")
        assert server.process.wait(PATIENCE) == 2
    finally:
        server.close()
