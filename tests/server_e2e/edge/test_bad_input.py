"""A whole server under bad requests: a 4xx in the route's own shape that names what is wrong, no echo, never a 5xx."""

import contextlib
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.server.mutations import mutate
from tests.server_e2e.expected import DIMENSIONS, FAKE, PAYLOAD_LIMIT, rows_of
from tests.server_e2e.running import PATIENCE, Reply, Server, send, serving

PATH = "/v1/embeddings"
SECRET = "QXZJ-9173-secret"  # in no message of ours


@pytest.fixture
def server(fake_server: Server) -> Server:
    return fake_server


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes one request at a time and no text that is too long."""
    flags = ("--fake-cost-ms", "400", "--no-auto-truncate", "--max-concurrent-requests", "1")
    with serving(*FAKE, *flags, folder=tmp_path_factory.mktemp("slow")) as running:
        yield running


def check_error(reply: Reply, status: int, param: str | None = None) -> Any:
    """The error, which has OpenAI's shape and repeats nothing."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert SECRET not in reply.body.decode()
    answer = reply.json()
    error = answer["error"]
    assert (answer["message"], answer["detail"]) == (error["message"],) * 2
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["param"] == param
    return error


def is_well(server: Server) -> bool:
    """Whether a usual request gets its own row."""
    reply = server.embed("hello world", encoding_format="bytes")
    return reply.status == 200 and np.array_equal(np.frombuffer(reply.body, "<f4"), rows_of(["hello world"])[0])


@pytest.mark.holds("Errors")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [SECRET, ""]}, "input[1]"),
        ({"input": [SECRET, 5]}, "input[1]"),
        ({"input": [SECRET] * 2049}, "input"),
        ({"input": [[101, 5, 102], []]}, "input[1]"),
        ({"input": [[5], [101, 5, 102]]}, "input[0]"),
        # ids that the model does not have
        ({"input": [5, 30522]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [[101, 5, 102], [101, 30522, 102]]}, "input[1]"),
        ({"input": [[101, 5, 102], [101, 2**31, 102]]}, "input[1]"),
        ({"input": [[2**63], [5]]}, "input[0]"),
        ({"input": [[-(10**30)]]}, "input[0]"),
        ({"input": [[101, *range(1000), 102], [101, 99999, *range(1000), 102]]}, "input[1]"),
        # the other fields
        ({"input": SECRET, "dimensions": DIMENSIONS + 1}, "dimensions"),
        ({"input": SECRET, "encoding_format": SECRET}, "encoding_format"),
        # no JSON
        (f'{{"input":"{SECRET}"'.encode(), None),
        (f'{{"input":"{SECRET}\\ud800"}}'.encode(), "input"),
        (b"[" * (PAYLOAD_LIMIT - 1), None),
        (b'{"input":' + b"[" * 90_000 + b"]" * 90_000 + b"}", "input[0]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_bodies(server: Server, body: object, param: str | None) -> None:
    error = check_error(server.request("POST", PATH, body), 400, param)

    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(param or "the body")


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", SECRET])
def test_the_body_is_read_as_json_whatever_it_is_called(server: Server, content_type: str) -> None:
    assert server.request("POST", PATH, {"input": "a"}, content_type=content_type).status == 200


def test_head_has_no_body(server: Server) -> None:
    reply = server.request("HEAD", PATH)
    assert (reply.status, reply.body) == (405, b"")
    reply = server.request("HEAD", "/readyz")
    assert (reply.status, reply.body) == (200, b"")


def raw_reply(server: Server, *parts: bytes) -> bytes:
    """What comes back on a connection of its own for these bytes, up to the end of an answer's body."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(65536) or b"}"
        return received


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
def test_a_length_over_the_limit_is_answered_before_the_body_is_sent(server: Server, expect: bytes) -> None:
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n" % (
        expect,
        PAYLOAD_LIMIT + 1,
    )

    received = raw_reply(server, head)

    assert received.startswith(b"HTTP/1.1 413 ")
    assert set(json.loads(received.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


@pytest.mark.holds("Limits")
def test_an_endless_body_is_answered_as_soon_as_it_is_over_the_limit(server: Server) -> None:
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (100_000, b" " * 100_000)

    received = raw_reply(server, head, chunk, chunk, chunk)

    assert received.startswith(b"HTTP/1.1 413 ")


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_that_is_sent_whole(server: Server, is_chunked: bool) -> None:
    """The rest is read and thrown away, so that a client that only listens afterwards gets its answer."""
    body = json.dumps({"input": SECRET, "user": "x" * 10 * PAYLOAD_LIMIT}).encode()
    with contextlib.closing(server.connect()) as connection:
        payload: Any = iter([body[:50_000], body[50_000:]]) if is_chunked else body
        connection.request("POST", PATH, payload, encode_chunked=is_chunked)
        answer = connection.getresponse()
        reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        check_error(reply, 413)

        assert send(connection, "POST", PATH, {"input": "a"}).status == 200


def test_a_body_of_the_very_limit(server: Server) -> None:
    body = json.dumps({"input": "a"}).encode()
    assert server.request("POST", PATH, body + b" " * (PAYLOAD_LIMIT - len(body))).status == 200
    check_error(server.request("POST", PATH, body + b" " * (PAYLOAD_LIMIT - len(body) + 1)), 413)


@pytest.mark.holds("Truncation")
@pytest.mark.parametrize(("given", "param"), [("word " * 600, "input"), (["a", "word " * 600], "input[1]")])
def test_a_text_that_is_too_long_where_truncation_is_off(slow: Server, given: object, param: str) -> None:
    error = check_error(slow.embed(given), 400, param)
    assert "256 tokens" in error["message"]
    check_error(slow.embed([[101, 5, 102], [101, *[5] * 255, 102]]), 400, "input[1]")


def test_a_text_of_far_too_many_tokens_where_truncation_is_off(slow: Server) -> None:
    check_error(slow.embed(["a", "word " * 100_000]), 400, "input[1]")


def test_one_request_more_than_may_be_open_is_429(slow: Server) -> None:
    with contextlib.closing(slow.connect()) as first, contextlib.closing(slow.connect()) as second:
        for connection in (first, second):
            connection.request("POST", PATH, b'{"input":"a"}')
        answers = [connection.getresponse() for connection in (first, second)]
        replies = {answer.status: (answer.getheader("retry-after"), answer.read()) for answer in answers}

    assert set(replies) == {200, 429}, replies
    retry_after, body = replies[429]
    assert int(retry_after or 0) >= 1
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


# fuzz

SEEDS = [
    b'{"input":"%b","model":"m","encoding_format":"base64","dimensions":8,"user":"u"}' % SECRET.encode(),
    b'{"input":["%b","b","\\u00e9\\ud83d\\ude42"],"model":null}' % SECRET.encode(),
    b'{"input":[[101,7592,102],[101,5,6,102]],"dimensions":64}',
    b'{"input":[101,7592,102],"encoding_format":"bytes"}',
    '{"input":["日本語 🙂","naïve"],"encoding_format":"float"}'.encode(),
]
HEADERS: list[dict[str, str]] = [
    {},
    {},
    {"accept": "application/octet-stream"},
    {"x_embedline_class": "bulk"},
    {"x_embedline_class": "\xff"},
    {"request_timeout_ms": "60000"},
    {"request_timeout_ms": "-0"},
    {"content_type": "\xff"},
]


def mutated(rng: random.Random) -> bytes:
    body = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randint(0, 4)):
        mutate(rng, body)
    return bytes(body)


def test_two_thousand_mutated_requests_on_kept_connections(server: Server) -> None:
    rng = random.Random(7)
    statuses = set()
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(server.connect())) for _ in range(4)]
        for number in range(2000):
            body, headers = mutated(rng), rng.choice(HEADERS)
            reply = send(connections[number % 4], "POST", PATH, body, **headers)
            statuses.add(reply.status)
            if reply.status != 200:
                assert reply.status == 400, (body, headers, reply)
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
                assert SECRET not in reply.body.decode(), body

    assert statuses == {200, 400}
    assert is_well(server)
    assert server.request("GET", "/readyz").status == 200
