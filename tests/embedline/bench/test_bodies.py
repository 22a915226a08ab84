"""Texts into requests, and tokens out of answers."""

import json
from typing import Any

import pytest

from embedline.bench.connection import HttpAnswer
from embedline.bench.options import Options, parse_url
from embedline.bench.requests import num_tokens, prepare

TEXTS = ["one", "two", "three"]


def requests(**fields: Any) -> list[tuple[str, Any]]:
    """Heads and bodies."""
    options = Options(url="http://localhost:81/prefix/", **fields)
    parts = [one.payload.decode().split("\r\n\r\n", 1) for one in prepare(options, parse_url(options.url), TEXTS)]
    return [(head, json.loads(body)) for head, body in parts]


def test_a_single_text_goes_as_a_text() -> None:
    found = requests(model="m")
    assert [body for _, body in found] == [{"input": text, "model": "m", "encoding_format": "float"} for text in TEXTS]
    assert found[0][0].splitlines()[:2] == ["POST /prefix/v1/embeddings HTTP/1.1", "host: localhost:81"]


def test_the_last_batch_is_filled_up() -> None:
    assert [body["input"] for _, body in requests(batch_size=2)] == [["one", "two"], ["three", "one"]]
    assert [body["input"] for _, body in requests(batch_size=5)] == [["one", "two", "three", "one", "two"]]


def test_embed_has_a_body_of_its_own() -> None:
    [(head, body)] = requests(route="/embed", batch_size=3, encoding="bytes")
    assert body == {"inputs": TEXTS}
    assert "accept: application/octet-stream" in head.splitlines()


def test_key_and_class_are_headers() -> None:
    head, _ = requests(api_key="secret", request_class="bulk")[0]
    assert {"authorization: Bearer secret", "x-embedline-class: bulk"} <= set(head.splitlines())


@pytest.mark.parametrize(
    ("headers", "body", "tokens"),
    [
        ({}, b'{"data": [' + b"0.5," * 5000 + b'], "usage": {"prompt_tokens": 12, "total_tokens": 12}}', 12),
        ({}, b'{"usage":{"prompt_tokens":3},"data":[' + b"0.5," * 5000 + b"]}", 3),
        ({b"x-embedline-prompt-tokens": b"99"}, b"\x00\x01", 99),
        ({b"x-compute-tokens": b"5"}, b"[[0.5]]", 5),
        ({}, b"[[0.5]]", None),
        ({b"x-compute-tokens": b"none"}, b"", None),
    ],
)
def test_tokens_are_what_the_server_says(headers: dict[bytes, bytes], body: bytes, tokens: int | None) -> None:
    assert num_tokens(HttpAnswer(200, headers, body)) == tokens
