"""Servers that stop, reset, answer half or lie: the error names the request and what was done; rows are kept."""

import contextlib
import http.client as http_client
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from embedline import Client, DeadlineExceeded, RequestFailed, RequestProcessingPreference
from embedline.client.answer import HttpAnswer
from embedline.client.embed import RowStore
from embedline.client.failure import Failure, Kind, refused
from embedline.client.scheduling import has_too_many_items
from tests.embedline.client.stub import CLOSE, RESET, WIDTH, Seen, Step, as_json, http, raw, rows_of, stub, texts

# Inputs 4 and 5 are in the request that goes wrong; those before have their rows by then.
PREFERENCE = RequestProcessingPreference(batch_size=2, max_concurrent_requests=1, max_retries=1, initial_backoff_ms=1)


def wrong_from(number: int, steps: Callable[[Seen], list[Step]]) -> Callable[[Seen], list[Step]]:
    return lambda seen: steps(seen) if seen.number >= number else [raw(seen.texts)]


def data(seen: Seen, *, width: int = WIDTH) -> list[dict[str, object]]:
    return [{"index": index, "embedding": [0.5] * width} for index in range(len(seen.texts))]


INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
RAW = {"content_type": "application/octet-stream"}
LIES: dict[str, tuple[Callable[[Seen], list[Step]], str]] = {
    "too few rows": (lambda seen: [raw(seen.texts[:1])], "1 rows for 2 inputs"),
    "too many rows": (lambda seen: [raw([*seen.texts, "more"])], "3 rows for 2 inputs"),
    "another width": (
        lambda _: [raw(texts(1), x_embedline_shape="2,2")],
        "rows of 2 numbers where earlier ones have 4",
    ),
    "no width": (lambda _: [http(200, b"", **RAW, x_embedline_shape="2,0")], "rows of 0 numbers"),
    "a huge width": (
        lambda seen: [raw(seen.texts, x_embedline_shape="2,99999999999", content_length=str(8 * 99999999999))],
        "rows of 99999999999 numbers",
    ),
    "a shape of words": (lambda seen: [raw(seen.texts, x_embedline_shape="two,4")], "its shape is not two numbers"),
    "a negative shape": (lambda seen: [raw(seen.texts, x_embedline_shape="-2,4")], "its shape is not two numbers"),
    "a body longer than its shape": (
        lambda seen: [raw(seen.texts, x_embedline_shape="2,4", content_length="64") + bytes(32)],
        "a body of 64 bytes where the shape 2,4 takes 32",
    ),
    "another dtype": (lambda seen: [raw(seen.texts, x_embedline_dtype="float16")], "rows of dtype float16"),
    "what a terminal acts on": (lambda seen: [raw(seen.texts, x_embedline_dtype="\x1b[2Jf")], r"of dtype \[2Jf where"),
    "another byte order": (lambda seen: [raw(seen.texts, x_embedline_endianness="big")], "rows of byte order big"),
    "no rows at all": (lambda _: [http(200, b"abc", **RAW)], "3 bytes, which are no 2 rows of float32"),
    "an empty body": (lambda _: [http(200, b"", **RAW)], "0 bytes, which are no 2 rows"),
    "no JSON": (lambda _: [http(200, b"<html>")], "its body is no JSON"),
    "half of JSON": (lambda _: [http(200, b'{"data": [')], "its body is no JSON"),
    "deep JSON": (lambda _: [http(200, b"[" * 200_000)], "its body is no JSON"),
    "other JSON": (lambda _: [as_json({"list": [1]})], "it has no list `data`"),
    "an error with status 200": (
        lambda _: [as_json({"error": {"message": "no such model"}})],
        "HTTP 200 with an error: no such model",
    ),
    "words with status 200": (lambda _: [as_json({"detail": "asleep"})], "HTTP 200 with an error: asleep"),
    "too few items": (lambda seen: [as_json({"data": data(seen)[:1]})], "1 rows for 2 inputs"),
    "one index twice": (lambda seen: [as_json({"data": data(seen)[:1] * 2})], "an index that is .* given twice"),
    "an index too large": (lambda _: [as_json({"data": [{"index": 5}, {"index": 1}]})], "an index that is"),
    "items that are none": (lambda _: [as_json({"data": [1, 2]})], "an index that is missing"),
    "no embedding": (lambda _: [as_json({"data": [{"index": 0}, {"index": 1}]})], "neither a list nor base64"),
    "words": (
        lambda _: [as_json({"data": [{"index": at, "embedding": ["a"] * 4} for at in (0, 1)]})],
        "something else than numbers",
    ),
    "null": (
        lambda _: [as_json({"data": [{"index": at, "embedding": [None] * 4} for at in (0, 1)]})],
        "something else than numbers",
    ),
    "texts of numbers": (
        lambda _: [as_json({"data": [{"index": at, "embedding": ["1", "2", "3", "4"]} for at in (0, 1)]})],
        "something else than numbers",
    ),
    "a truth": (
        lambda _: [as_json({"data": [{"index": at, "embedding": [1, 2, 3, True]} for at in (0, 1)]})],
        "something else than numbers",
    ),
    "more than float32 holds": (
        lambda _: [as_json({"data": [{"index": at, "embedding": [1e39] * 4} for at in (0, 1)]})],
        "something else than finite numbers",
    ),
    "two lengths": (
        lambda seen: [raw(seen.texts, content_length="32\r\ncontent-length: 36")],
        "it has several content-lengths",
    ),
    "a length with a sign": (lambda seen: [raw(seen.texts, content_length="+32")], "its content-length is no number"),
    "a length below zero": (lambda seen: [raw(seen.texts, content_length="-1")], "its content-length is no number"),
    "no end of interim answers": (lambda _: [INTERIM * 100], "it has too many interim answers"),
    "a long interim answer": (lambda _: [INTERIM[:-2] + b"a: b\r\n" * 200], "an interim answer is too long"),
    "another protocol": (lambda _: [http(101)], "HTTP 101"),
    "no base64": (lambda _: [as_json({"data": [{"index": at, "embedding": "!"} for at in (0, 1)]})], "no base64"),
    "five bytes": (
        lambda _: [as_json({"data": [{"index": at, "embedding": "AAAAAAA="} for at in (0, 1)]})],
        "5 bytes, which are no float32",
    ),
    "JSON of another width": (lambda seen: [as_json({"data": data(seen, width=3)})], "rows of 3 numbers where earlier"),
    "a redirect": (
        lambda _: [http(307, b"", location="http://elsewhere/v1/embeddings?key=1")],
        r"HTTP 307, a redirect to http://elsewhere/v1/embeddings, which is not followed",
    ),
    "a compressed body": (lambda seen: [raw(seen.texts, content_encoding="gzip")], "its body is compressed"),
    "no HTTP": (lambda _: [b"SSH-2.0-OpenSSH\r\n\r\n"], "what came is not HTTP"),
    "a page": (lambda _: [http(403, b"<h1>go away\x1b[2J</h1>", content_type="text/html")], "HTTP 403: <h1>go away"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_an_error_at_once_and_the_rows_before_are_kept(lie: str) -> None:
    steps, words = LIES[lie]
    with (
        stub(wrong_from(2, steps)) as server,
        Client(server.url, preference=PREFERENCE) as client,
        pytest.raises(RequestFailed, match=words) as failed,
    ):
        client.embed(texts(9))

    error = failed.value
    assert str(error).startswith(f"POST {server.url}/v1/embeddings with inputs 4 to 5 (x-request-id embedline-")
    assert str(error).endswith(". 4 of 9 inputs are done")
    assert "\x1b" not in str(error)
    assert (error.start, error.stop, len(error.attempts), len(server.seen)) == (4, 6, 1, 3)
    assert error.partial.done.tolist() == [True] * 4 + [False] * 5
    assert np.array_equal(error.partial.numpy()[:4], rows_of(texts(4)))
    assert np.isnan(error.partial.numpy()[4:]).all()


BREAKS: dict[str, tuple[Callable[[Seen], list[Step]], str]] = {
    "a reset": (lambda _: [RESET], "the server closed the connection without an answer"),
    "an end without an answer": (lambda _: [CLOSE], "without an answer"),
    "half of a body without a length": (
        lambda _: [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{", CLOSE],
        "the connection ended, and its body is no JSON",
    ),
    "half of a head": (
        lambda _: [b"HTTP/1.1 200 OK\r\ncontent-le", CLOSE],
        "the connection ended within the head of the answer",
    ),
    "half of a first line": (lambda _: [b"HTT", CLOSE], "within the head of the answer"),
    "a head without its end": (lambda _: [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n", CLOSE], "within the head"),
    "an interim answer alone": (lambda _: [INTERIM, CLOSE], "within the head of the answer"),
    "half of the rows": (lambda seen: [raw(seen.texts)[:-7], CLOSE], "after 25 of 32 bytes"),
    "half of JSON's length": (lambda _: [http(200, b"[]", content_length="100"), CLOSE], "after 2 of 100 bytes"),
    "rows that nothing marks as whole": (
        lambda _: [b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n\r\n" + bytes(16), CLOSE],
        "the connection ended, and nothing says how many rows there were",
    ),
    "half of a chunk": (
        lambda _: [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", CLOSE],
        "the answer ended in the middle",
    ),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_answer_is_asked_for_again(broken: str) -> None:
    steps, _ = BREAKS[broken]
    script = lambda seen: steps(seen) if seen.number in (2, 5) else [raw(seen.texts)]  # noqa: E731
    with stub(script) as server, Client(server.url, preference=PREFERENCE) as client:
        assert np.array_equal(client.embed(texts(12)).numpy(), rows_of(texts(12)))
    assert len(server.seen) == 8


@pytest.mark.parametrize("broken", BREAKS)
def test_what_stays_broken_is_an_error_with_all_attempts(broken: str) -> None:
    steps, words = BREAKS[broken]
    with (
        stub(wrong_from(2, steps)) as server,
        Client(server.url, preference=PREFERENCE) as client,
        pytest.raises(RequestFailed, match=words) as failed,
    ):
        client.embed(texts(9))
    error = failed.value
    assert f"; 2 attempts: {server.url}: " in str(error)
    assert ", tried again after 0.0" in error.attempts[0]
    assert (error.start, error.stop, error.status) == (4, 6, None)
    assert error.partial.done.sum() == 4


def test_a_width_that_its_body_does_not_have_takes_no_memory() -> None:
    wide = raw(texts(3), x_embedline_shape=f"3,{1 << 20}")
    with (
        stub(lambda _: [wide]) as server,
        Client(server.url) as client,
        pytest.raises(RequestFailed, match="a body of 48 bytes where the shape 3,1048576 takes") as failed,
    ):
        client.embed(texts(3))
    assert failed.value.partial.numpy().shape == (3, 0)


def test_rows_that_memory_does_not_hold_are_a_wrong_answer() -> None:
    with pytest.raises(Failure, match="rows of 1048576 numbers, and memory does not hold"):
        RowStore(1 << 40).rows_for(0, 2, 1 << 20)


def test_a_length_that_is_only_promised_takes_no_memory() -> None:
    script = lambda _: [http(200, b"[]", content_length=str(1 << 30)), CLOSE]  # noqa: E731
    with stub(script) as server, Client(server.url, preference=PREFERENCE) as client:
        tracemalloc.start()
        with pytest.raises(RequestFailed, match="the answer ended after 2 of 1073741824 bytes"):
            client.batch_post("/any", [{}])
        with pytest.raises(RequestFailed, match="its body has 1073741824 bytes, and at most 1572912 are read"):
            client.embed("text")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1 << 25


@pytest.mark.parametrize("read", [lambda answer: answer.read_all(1000), lambda answer: answer.read_start(1000)])
def test_a_chunk_of_less_than_no_bytes_is_not_all_that_comes(
    tmp_path: Path, read: Callable[[HttpAnswer], object]
) -> None:
    """Python's own client would read until the end of the connection, however much that is."""
    file = tmp_path / "answer"
    file.write_bytes(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n" + bytes(1 << 20))
    with file.open("rb") as sent:
        response = http_client.HTTPResponse(mock.Mock(makefile=lambda _: sent))
        response.begin()
        with contextlib.suppress(Failure):
            read(HttpAnswer(response, partial(Failure, Kind.CONNECTION)))
        assert sent.tell() < 100_000


def test_a_long_error_is_looked_through_at_once() -> None:
    """It would take ten seconds of this thread's CPU if each part were looked at again from each beginning."""
    began = time.thread_time()
    assert not has_too_many_items(refused(400, b"max" * 21_000, retry_after=None, location=None))
    assert time.thread_time() - began < 5


@pytest.mark.parametrize(
    ("answer", "words"),
    [(http(413, b"too large"), "HTTP 413: too large"), (b"", "the connection broke while the request was sent")],
)
def test_an_answer_that_comes_while_the_body_is_sent_is_read(answer: bytes, words: str) -> None:
    """The server reads only the head, answers and goes; the body is larger than what the sockets hold."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse_in_the_middle() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        server = threading.Thread(target=refuse_in_the_middle)
        server.start()
        preference = RequestProcessingPreference(max_retries=0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, preference=preference) as client, pytest.raises(RequestFailed, match=words):
            client.embed("a" * (1 << 25))
        server.join()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nabc"])
def test_a_server_that_stops_is_left_at_the_deadline(sent: bytes) -> None:
    """Whether no byte came, half of a head or half of a body."""
    never = threading.Event()
    preference = RequestProcessingPreference(timeout_s=0.05, max_retries=0, batch_size=2, max_concurrent_requests=1)
    script = wrong_from(1, lambda _: [sent, never])
    with stub(script) as server, Client(server.url) as client:
        client.embed(texts(1))
        with pytest.raises(DeadlineExceeded, match="with inputs 0 to 1") as late:
            client.embed(texts(4), preference=preference)
        server.wait_until(lambda: not late.value.partial.done.any())
        never.set()
    assert isinstance(late.value, TimeoutError)


def refuse(body: object, _: Seen) -> list[Step]:
    return [as_json(body, 401)]


def test_the_message_of_an_error_body_is_shown_in_every_family_of_errors() -> None:
    bodies = [
        {"error": {"message": "these words", "type": "x"}},
        {"error": "these words", "error_type": "Validation"},
        {"message": "these words"},
        {"detail": "these words"},
    ]
    for body in bodies:
        with (
            stub(partial(refuse, body)) as server,
            Client(server.url) as client,
            pytest.raises(RequestFailed, match=r"HTTP 401: these words\. 0 of 1 inputs are done$") as failed,
        ):
            client.embed("text")
        assert failed.value.status == 401
        assert len(server.seen) == 1
