"""Cohere's /v1/tokenize and /v1/detokenize."""

import asyncio
import json
from typing import Any

import pytest

from tests.server.edge import Called, Edge, call

META = {"api_version": {"version": "1"}}


def post(path: str, body: Any) -> tuple[Called, Edge]:
    async def run() -> tuple[Called, Edge]:
        edge = Edge()
        return await call(edge.app, "POST", path, json.dumps(body).encode()), edge

    return asyncio.run(run())


@pytest.mark.holds("Cohere's routes")
def test_tokens_without_special_ones() -> None:
    called, edge = post("/v1/tokenize", {"text": "aé", "model": "any"})
    assert json.loads(called.body) == {"tokens": [97, 33], "token_strings": ["a", "é"], "meta": META}
    assert edge.tokenizers.asked[0][1]["add_special_tokens"] is False


@pytest.mark.holds("Cohere's routes")
def test_a_text_of_tokens() -> None:
    called, edge = post("/v1/detokenize", {"tokens": [5, 6], "model": "any"})
    assert json.loads(called.body) == {"text": "5 6", "meta": META}
    assert edge.tokenizers.asked[0][1]["skip_special_tokens"] is False


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/tokenize", {}, "text"),
        ("/v1/tokenize", {"text": ""}, "text"),
        ("/v1/tokenize", {"text": ["a"]}, "text"),
        ("/v1/tokenize", {"text": [5]}, "text"),
        ("/v1/detokenize", {"tokens": []}, "tokens"),
        ("/v1/detokenize", {"tokens": "a"}, "tokens"),
        ("/v1/detokenize", {"tokens": [[5]]}, "tokens"),
        ("/v1/detokenize", {}, "tokens"),
    ],
)
def test_what_is_refused_is_named(path: str, body: Any, param: str) -> None:
    called, _ = post(path, body)
    assert (called.status, called.error()["param"]) == (400, param)
