"""The decoders of /tokenize and /decode."""

import json
from typing import Any

import pytest

from server.dialects.tei.tokens import decode_decode, decode_tokenize, encode_tokens
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from server.requests.work import DecodeRequest, TokenizeRequest
from tests.server.edge import new_call, one_model
from tests.server.loop_share import turns_during
from tokenizer_pool.tasks import Token

MODELS = one_model(default_prompt="D: ", facts={"prompts": {"query": "Q: "}})


def tokenize(body: bytes | dict[str, Any]) -> TokenizeRequest:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_tokenize(new_call(models=MODELS), payload)


def decode(body: bytes | dict[str, Any]) -> DecodeRequest:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_decode(new_call(models=MODELS), payload)


@pytest.mark.holds("TEI's routes")
def test_tokenize() -> None:
    request = tokenize({"inputs": ["a", "b"], "other": 1})

    assert (request.texts, request.is_single, request.add_special_tokens) == (["a", "b"], False, True)
    assert request.prompt == "D: "  # what the model would see
    assert tokenize({"inputs": "a"}).is_single
    assert not tokenize({"inputs": "a", "add_special_tokens": False}).add_special_tokens
    assert tokenize({"inputs": "a", "prompt_name": "query"}).prompt == "Q: "
    assert tokenize({"inputs": "a", "model": "x:query"}).prompt == "Q: "


@pytest.mark.holds("TEI's routes")
def test_decode() -> None:
    request = decode({"ids": [[5, 6], [7]], "other": 1})

    assert (request.token_ids, request.is_single, request.skip_special_tokens) == ([[5, 6], [7]], False, True)
    assert (decode({"ids": [5, 6]}).token_ids, decode({"ids": [5]}).is_single) == ([[5, 6]], True)
    assert not decode({"ids": [5], "skip_special_tokens": False}).skip_special_tokens


@pytest.mark.parametrize(
    ("decoder", "body", "kind", "param"),
    [
        (tokenize, {"inputs": ""}, EmptyInput, "inputs"),
        (tokenize, {"inputs": ["a", ""]}, EmptyInput, "inputs[1]"),
        (tokenize, {"inputs": []}, EmptyInput, "inputs"),
        (tokenize, {}, InvalidRequest, "inputs"),
        (tokenize, {"inputs": [5]}, InvalidRequest, "inputs"),
        (tokenize, {"inputs": [[5]]}, InvalidRequest, "inputs"),
        (tokenize, {"inputs": ["a"] * 5}, InvalidRequest, "inputs"),
        (tokenize, {"inputs": "a", "add_special_tokens": None}, InvalidRequest, "add_special_tokens"),
        (tokenize, {"inputs": "a", "prompt_name": "nonsense"}, InvalidRequest, "prompt_name"),
        (tokenize, b'{"inputs":', MalformedBody, None),
        (decode, {"ids": []}, EmptyInput, "ids"),
        (decode, {"inputs": [5]}, InvalidRequest, "ids"),
        (decode, {"ids": "a"}, InvalidRequest, "ids"),
        (decode, {"ids": ["a"]}, InvalidRequest, "ids"),
        (decode, {"ids": 5}, InvalidRequest, "ids"),
        (decode, {"ids": [1.5]}, InvalidRequest, "ids[0]"),
        (decode, {"ids": [[5], "a"]}, InvalidRequest, "ids"),
        (decode, {"ids": [[5]] * 5}, InvalidRequest, "ids"),
        (decode, {"ids": [5], "skip_special_tokens": "no"}, InvalidRequest, "skip_special_tokens"),
        (decode, b"[5]", InvalidRequest, None),
    ],
)
def test_what_is_refused_is_named(decoder: Any, body: Any, kind: type[RequestError], param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        decoder(body)

    assert type(refused.value) is kind
    assert refused.value.param == param
    assert refused.value.message.startswith(param or "the body")


@pytest.mark.parametrize(("num_texts", "num_tokens"), [(10, 100), (1, 10_240)])
def test_other_requests_run_while_tokens_are_written(num_texts: int, num_tokens: int) -> None:
    request = tokenize({"inputs": ["a"]})
    tokens = [[Token(7, "a", False, at, at + 1) for at in range(num_tokens)]] * num_texts

    assert turns_during(encode_tokens(new_call(models=MODELS), request, tokens)) >= 10
