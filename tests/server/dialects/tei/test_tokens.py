"""The decoders of /tokenize and /decode."""

from typing import Any

import pytest

from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from tests.server.asking import decoded_by, refused_by
from tests.server.edge import new_call, one_model, route_of
from tests.server.loop_share import turns_during
from tokenizer_pool.tasks import Token

decode_tokenize, decode_decode = (route_of(path).decode for path in ("/tokenize", "/decode"))
encode_tokens = route_of("/tokenize").stages.encode

MODELS = one_model(default_prompt="D: ", facts={"prompts": {"query": "Q: "}})


def tokenize(body: dict[str, Any]) -> Any:
    return decoded_by(decode_tokenize, body, models=MODELS)


def decode(body: dict[str, Any]) -> Any:
    return decoded_by(decode_decode, body, models=MODELS)


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

    assert (request.items, request.is_single, request.skip_special_tokens) == ([[5, 6], [7]], False, True)
    assert (decode({"ids": [5, 6]}).items, decode({"ids": [5]}).is_single) == ([[5, 6]], True)
    assert not decode({"ids": [5], "skip_special_tokens": False}).skip_special_tokens


@pytest.mark.parametrize(
    ("decoder", "body", "kind", "param"),
    [
        (decode_tokenize, {"inputs": ""}, EmptyInput, "inputs"),
        (decode_tokenize, {"inputs": ["a", ""]}, EmptyInput, "inputs[1]"),
        (decode_tokenize, {"inputs": []}, EmptyInput, "inputs"),
        (decode_tokenize, {}, InvalidRequest, "inputs"),
        (decode_tokenize, {"inputs": [5]}, InvalidRequest, "inputs"),
        (decode_tokenize, {"inputs": [[5]]}, InvalidRequest, "inputs"),
        (decode_tokenize, {"inputs": ["a"] * 5}, InvalidRequest, "inputs"),
        (decode_tokenize, {"inputs": "a", "add_special_tokens": None}, InvalidRequest, "add_special_tokens"),
        (decode_tokenize, {"inputs": "a", "prompt_name": "nonsense"}, InvalidRequest, "prompt_name"),
        (decode_tokenize, b'{"inputs":', MalformedBody, None),
        (decode_decode, {"ids": []}, EmptyInput, "ids"),
        (decode_decode, {"inputs": [5]}, InvalidRequest, "ids"),
        (decode_decode, {"ids": "a"}, InvalidRequest, "ids"),
        (decode_decode, {"ids": ["a"]}, InvalidRequest, "ids"),
        (decode_decode, {"ids": 5}, InvalidRequest, "ids"),
        (decode_decode, {"ids": [1.5]}, InvalidRequest, "ids[0]"),
        (decode_decode, {"ids": [[5], "a"]}, InvalidRequest, "ids"),
        (decode_decode, {"ids": [[5]] * 5}, InvalidRequest, "ids"),
        (decode_decode, {"ids": [5], "skip_special_tokens": "no"}, InvalidRequest, "skip_special_tokens"),
        (decode_decode, b"[5]", InvalidRequest, None),
    ],
)
def test_what_is_refused_is_named(decoder: Any, body: Any, kind: type[RequestError], param: str | None) -> None:
    assert refused_by(decoder, body, models=MODELS) == (kind, param)


@pytest.mark.parametrize(("num_texts", "num_tokens"), [(10, 100), (1, 10_240)])
def test_other_requests_run_while_tokens_are_written(num_texts: int, num_tokens: int) -> None:
    request = tokenize({"inputs": ["a"]})
    tokens = [[Token(7, "a", False, at, at + 1) for at in range(num_tokens)]] * num_texts

    assert turns_during(encode_tokens(new_call(models=MODELS), request, tokens)) >= 10
