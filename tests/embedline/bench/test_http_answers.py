"""Answers out of bytes, however they are cut."""

import pytest

from embedline.bench.connection import AnswerParser, BadAnswer, HttpAnswer

BY_LENGTH = b"HTTP/1.1 200 OK\r\nX-Compute-Tokens: 12\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;extension=1\r\nlo\r\n0\r\nTrailer: yes\r\n\r\n"
)
AFTER_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + BY_LENGTH
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def parse(data: bytes, size: int) -> HttpAnswer | None:
    parser = AnswerParser()
    answers = [parser.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert answers[:-1] == [None] * (len(answers) - 1)
    return answers[-1]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("data", "status", "body"),
    [(BY_LENGTH, 200, b"hello"), (CHUNKED, 200, b"hello"), (AFTER_INTERIM, 200, b"hello"), (EMPTY, 204, b"")],
)
def test_an_answer_is_the_same_however_it_is_cut(data: bytes, status: int, body: bytes, size: int) -> None:
    found = parse(data, size)
    assert found is not None
    assert (found.status, found.body, found.keeps_alive) == (status, body, True)
    assert found.headers.get(b"x-compute-tokens") == (b"12" if b"Compute" in data else None)


def test_an_answer_of_unknown_length_ends_with_the_connection() -> None:
    parser = AnswerParser()
    parts = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhel", b"lo"]
    assert [parser.feed(part) for part in parts] == [None, None]
    assert parser.feed_end() == HttpAnswer(200, {b"connection": b"close"}, b"hello", keeps_alive=False)


def test_an_answer_that_is_cut_off_is_none() -> None:
    parser = AnswerParser()
    assert parser.feed(BY_LENGTH[:-1]) is None
    assert parser.feed_end() is None


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        AnswerParser().feed(data)
