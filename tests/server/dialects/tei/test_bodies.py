"""TEI's decoders: every form of body, and a clear refusal of everything else that repeats nothing of what came."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.types import OutputKind
from server.dialects.route import Call, RequestOptions
from server.dialects.row_answers import FLOATS, RAW_FLOATS, Container
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from server.requests.work import EmbedRequest
from tests.server.asking import decoded_by, refused_by
from tests.server.edge import new_call, one_model, route_of

decode_embed, decode_embed_all, decode_similarity, decode_any = (
    route_of(path).decode for path in ("/embed", "/embed_all", "/similarity", "/")
)

Decode = Callable[[Call, bytes], EmbedRequest]

MODELS = one_model(default_prompt="D: ", facts={"prompts": {"query": "Q: ", "passage": "P: "}})
SIMILAR = {"source_sentence": "a", "sentences": ["b", "c"]}


def asked(decode: Decode, body: dict[str, Any]) -> Any:
    return decoded_by(decode, body, models=MODELS)


@pytest.mark.holds("TEI's routes")
def test_what_each_route_gives_by_itself() -> None:
    embed = asked(decode_embed, {"inputs": "a"})
    tokens = asked(decode_embed_all, {"inputs": "a"})
    similarity = asked(decode_similarity, {"inputs": SIMILAR})

    assert (embed.outputs, embed.normalize) == (OutputKind.POOLED, True)
    assert (tokens.outputs, tokens.normalize) == (OutputKind.TOKENS, False)
    assert tokens.dimensions is None
    assert (similarity.outputs, similarity.normalize) == (OutputKind.POOLED, True)


def test_raw_rows_on_each_route() -> None:
    routes = [(decode_embed, "a"), (decode_embed_all, "a"), (decode_any, "a"), (decode_similarity, SIMILAR)]
    forms = []
    for decode, inputs in routes:
        call = new_call(RequestOptions(accepts=Container.RAW), models=MODELS)
        decode(call, json.dumps({"inputs": inputs}).encode())
        forms.append(call.form)
    assert forms == [RAW_FLOATS] * 3 + [FLOATS]


@pytest.mark.parametrize("decode", [decode_similarity, decode_any])
def test_similarity(decode: Decode) -> None:
    request = asked(decode, {"inputs": {**SIMILAR, "more": 1}, "parameters": {}})

    assert request.texts == ["a", "b", "c"]
    names = [request.name_of(index) for index in (-1, 0, 1, 2)]
    assert names == ["inputs.sentences", "inputs.source_sentence", "inputs.sentences[0]", "inputs.sentences[1]"]


@pytest.mark.holds("TEI's routes")
def test_as_many_sentences_as_items_are_allowed() -> None:
    request = asked(decode_similarity, {"inputs": {"source_sentence": "a", "sentences": ["b"] * 4}})
    assert request.num_items == 5


def test_root_is_embed_if_inputs_are_not_an_object() -> None:
    body = {"inputs": ["a"], "normalize": False, "dimensions": 3, "prompt_name": "query", "parameters": {}}
    assert asked(decode_any, body) == asked(decode_embed, body)


@pytest.mark.holds("TEI's routes", "Errors")
@pytest.mark.parametrize(
    ("decode", "body", "kind", "param"),
    [
        # nothing to do
        (decode_embed, b'{"inputs":""}', EmptyInput, "inputs"),
        (decode_embed, b'{"inputs":[]}', EmptyInput, "inputs"),
        (decode_any, b'{"inputs":["a",""]}', EmptyInput, "inputs[1]"),
        (
            decode_similarity,
            b'{"inputs":{"source_sentence":"","sentences":["a"]}}',
            EmptyInput,
            "inputs.source_sentence",
        ),
        (decode_similarity, b'{"inputs":{"source_sentence":"a","sentences":[]}}', EmptyInput, "inputs.sentences"),
        (decode_any, b'{"inputs":{"source_sentence":"a","sentences":[""]}}', EmptyInput, "inputs.sentences[0]"),
        # of another form
        (decode_embed, b"{}", InvalidRequest, "inputs"),
        (decode_any, b"[]", InvalidRequest, None),
        (decode_embed, b'{"inputs":5}', InvalidRequest, "inputs"),
        (decode_embed, b'{"inputs":{"source_sentence":"a","sentences":["b"]}}', InvalidRequest, "inputs"),
        (decode_embed, b'{"inputs":["a",[5,"b"]]}', InvalidRequest, "inputs[1][1]"),
        (decode_embed_all, b'{"inputs":[[5],true]}', InvalidRequest, "inputs[1]"),
        (decode_any, b'{"inputs":{}}', InvalidRequest, "inputs.source_sentence"),
        (decode_any, b'{"inputs":{"source_sentence":"a"}}', InvalidRequest, "inputs.sentences"),
        (decode_any, b'{"inputs":{"source_sentence":5,"sentences":["b"]}}', InvalidRequest, "inputs.source_sentence"),
        (decode_similarity, b'{"inputs":"a"}', InvalidRequest, "inputs"),
        (decode_similarity, b'{"inputs":{"source_sentence":"a","sentences":"b"}}', InvalidRequest, "inputs.sentences"),
        (decode_similarity, b'{"inputs":{"source_sentence":"a","sentences":[5]}}', InvalidRequest, "inputs.sentences"),
        (
            decode_similarity,
            b'{"inputs":{"source_sentence":"a","sentences":["b",5]}}',
            InvalidRequest,
            "inputs.sentences[1]",
        ),
        (
            decode_similarity,
            b'{"inputs":{"source_sentence":"a","sentences":["b"]},"parameters":{"truncate":1}}',
            InvalidRequest,
            "parameters.truncate",
        ),
        # too many
        (decode_embed, b'{"inputs":["a","a","a","a","a"]}', InvalidRequest, "inputs"),
        (
            decode_similarity,
            b'{"inputs":{"source_sentence":"a","sentences":["b","b","b","b","b"]}}',
            InvalidRequest,
            "inputs.sentences",
        ),
        # the other fields
        (decode_embed, b'{"inputs":"a","normalize":"yes"}', InvalidRequest, "normalize"),
        (decode_embed, b'{"inputs":"a","dimensions":0}', InvalidRequest, "dimensions"),
        (decode_embed, b'{"inputs":"a","dimensions":9}', InvalidRequest, "dimensions"),
        (decode_embed, b'{"inputs":"a","truncate":"no"}', InvalidRequest, "truncate"),
        (decode_embed, b'{"inputs":"a","truncation_direction":"LEFT"}', InvalidRequest, "truncation_direction"),
        (decode_embed, b'{"inputs":"a","truncation_direction":""}', InvalidRequest, "truncation_direction"),
        (decode_embed_all, b'{"inputs":"a","prompt_name":"nonsense"}', InvalidRequest, "prompt_name"),
        (decode_embed_all, b'{"inputs":[5],"prompt_name":"query"}', InvalidRequest, "prompt_name"),
        # no JSON
        (decode_embed, b"", MalformedBody, None),
        (decode_any, b'{"inputs":"a"', MalformedBody, None),
        (decode_similarity, b"inputs=a", MalformedBody, None),
        (decode_embed, b'{"inputs":"a","other":' + b"[" * 70 + b"]" * 70 + b"}", MalformedBody, None),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else getattr(value, "__name__", str(value)),
)
def test_what_is_refused_is_named(decode: Decode, body: bytes, kind: type[RequestError], param: str | None) -> None:
    assert refused_by(decode, body, models=MODELS) == (kind, param)
