"""Webhooks of a whole server, to a receiver on this machine; and the examples of docs/jobs.md, which have them too."""

import base64
import hmac
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.documents import ROOT, Example, examples
from tests.server.jobs.served.asking import accepted, ended, result
from tests.server.jobs.served.hooks import receiving
from tests.server_e2e.expected import FAKE
from tests.server_e2e.running import Server, serving
from tests.test_readme import is_as_said, output_of, skip_without

RUN = [
    example for example in examples((ROOT / "docs" / "jobs.md").read_text()) if example.language in ("bash", "python")
]
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


@pytest.mark.parametrize("example", RUN, ids=range(len(RUN)))
def test_an_example_prints_what_the_page_says(example: Example, server: Server, tmp_path: Path) -> None:
    skip_without("bash", "curl")
    (tmp_path / "secrets").write_text(SECRET)
    code = example.code.replace("http://localhost:8080", f"http://localhost:{server.port}")
    shell = ["bash", "-euo", "pipefail", "-c"] if example.language == "bash" else [sys.executable, "-c"]
    printed = output_of([*shell, code], server, tmp_path)

    assert example.output is not None
    assert is_as_said(printed, example.output), printed
