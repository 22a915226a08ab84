"""OpenAI's decoder: every form of input, and a clear refusal of everything else that repeats nothing of what came."""

import json
from typing import Any

import pytest

from server.dialects.openai import decode
from server.dialects.route import RequestOptions
from server.dialects.row_answers import FLOATS, Container, DType, Encoding, Endianness, RowForm
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody
from server.requests.work import EmbedRequest
from tests.server.edge import DIMENSIONS, new_call

MANY = 1_000_000
NO_OPTIONS = RequestOptions()


def request_of(body: bytes | dict[str, Any], options: RequestOptions = NO_OPTIONS) -> EmbedRequest:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode(new_call(options), payload)


def form_of(body: dict[str, Any], options: RequestOptions = NO_OPTIONS) -> RowForm:
    call = new_call(options)
    decode(call, json.dumps(body).encode())
    return call.form


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize(
    ("given", "texts", "is_single"),
    [
        ("a", ["a"], True),
        (" ", [" "], True),
        ("\0", ["\0"], True),
        (["a"], ["a"], False),
        (["a", "b", "a"], ["a", "b", "a"], False),
        (['"a", "b", "c", "d", "e"', "[[[[[[", "\\"], ['"a", "b", "c", "d", "e"', "[[[[[[", "\\"], False),
        (["\ud83d\ude42 日本", "é"], ["🙂 日本", "é"], False),
    ],
)
def test_texts(given: object, texts: list[str], is_single: bool) -> None:
    request = request_of({"input": given})

    assert request.items == texts
    assert request.num_items == len(texts)
    assert request.is_single is is_single


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize(
    ("given", "token_ids", "is_single"),
    [
        ([5], [[5]], True),
        ([5, 6, 7, 8, 9], [[5, 6, 7, 8, 9]], True),  # more ids than a request may have items
        ([[5]], [[5]], False),
        ([[5, 6], [7]], [[5, 6], [7]], False),
        ([[5], []], [[5], []], False),  # whether ids are there and the model's own is seen where its size is known
        ([-1, 2**31, 2**63, -(2**70)], [[-1, 2**31, 2**63, -(2**70)]], True),
    ],
)
def test_token_ids(given: object, token_ids: list[list[int]], is_single: bool) -> None:
    request = request_of({"input": given})

    assert request.items == token_ids
    assert request.is_single is is_single


@pytest.mark.holds("OpenAI's route", "TEI's routes")
@pytest.mark.parametrize(
    ("given", "items"),
    [
        (["a", [5, 6]], ["a", [5, 6]]),
        ([[5], 'b["', [6]], [[5], 'b["', [6]]),
        ([{"text": "a"}, "b", [5]], ["a", "b", [5]]),
        ([{"text": "a", "image": None, "id": "7"}, {"text": "[[[[[["}], ["a", "[[[[[["]),
    ],
)
def test_a_list_may_mix_texts_ids_and_objects(given: object, items: list[object]) -> None:
    request = request_of({"input": given})

    assert request.items == items
    assert not request.is_single


@pytest.mark.holds("OpenAI's route", "Errors", "Limits", "Prompts")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        # nothing to embed
        (b'{"input":""}', "input"),
        (b'{"input":[]}', "input"),
        (b'{"input":["a",""]}', "input[1]"),
        (b'{"model":"m"}', "input"),
        (b"{}", "input"),
        # of a wrong type
        (b'{"input":null}', "input"),
        (b'{"input":5}', "input"),
        (b'{"input":1.5}', "input"),
        (b'{"input":true}', "input"),
        (b'{"input":{"text":"a"}}', "input"),
        (b'{"input":[null]}', "input[0]"),
        (b'{"input":[{}]}', "input[0].text"),
        (b'{"input":[{"image":"a"}]}', "input[0].image"),
        (b'{"input":["a",{"text":"b","url":"c"}]}', "input[1].url"),
        (b'{"input":[{"text":"b","text_pair":"c"}]}', "input[0].text_pair"),
        (b'{"input":["a",{"text":""}]}', "input[1]"),
        (b'{"input":["a",[]]}', "input[1]"),
        (b'{"input":[[],"a"]}', "input[0]"),
        (b'{"input":[[1],["a"]]}', "input[1][0]"),
        (b'{"input":["a",[1],null]}', "input[2]"),
        (b'{"input":["a",[1],"b",[2],{"text":"c"}]}', "input"),
        (b'{"input":["a",' + b"[]," * MANY + b"[]]}", "input"),
        (b'{"input":["a",' + b"{}," * MANY + b"{}]}", "input"),
        (b'{"input":["a",' + b'"",' * MANY + b"[]]}", "input"),
        (b'{"input":["a",[' + b"5," * 5 * MANY + b"5]]}", "input"),
        (b'{"input":[1.25]}', "input[0]"),
        (b'{"input":[1,1.5]}', "input[1]"),
        (b'{"input":[true]}', "input[0]"),
        (b'{"input":[1,false]}', "input[1]"),
        (b'{"input":["a",null]}', "input[1]"),
        (b'{"input":[[1],[2,2.5]]}', "input[1][1]"),
        (b'{"input":[[true]]}', "input[0][0]"),
        (b'{"input":[["a"]]}', "input[0][0]"),
        (b'{"input":[[[1]]]}', "input[0][0]"),
        # one kind only
        (b'{"input":["a","b",3]}', "input[2]"),
        (b'{"input":[1,"b"]}', "input[1]"),
        (b'{"input":[1,[2]]}', "input[1]"),
        (b'{"input":[[1],2]}', "input[1]"),
        # too many
        (b'{"input":["a","a","a","a","a"]}', "input"),
        (b'{"input":[[1],[1],[1],[1],[1]]}', "input"),
        (b'{"input":[' + b"5," * 5 * MANY + b"5]}", "input"),
        (b'{"input":[[' + b"5," * 5 * MANY + b"5]]}", "input"),
        (b'{"input":[' + b"[]," * MANY + b"[]]}", "input"),
        (b'{"input":[' + b'"",' * MANY + b'""]}', "input"),
        (b'{"input":["\\\\","\\\\","\\\\","\\\\","\\\\"]}', "input"),
        # the other fields
        (b'{"input":"a","model":5}', "model"),
        (b'{"input":"a","model":["m"]}', "model"),
        (b'{"input":"a","user":5}', "user"),
        (b'{"input":"a","encoding_format":"float64"}', "encoding_format"),
        (b'{"input":"a","encoding_format":"FLOAT"}', "encoding_format"),
        (b'{"input":"a","encoding_format":""}', "encoding_format"),
        (b'{"input":"a","encoding_format":4}', "encoding_format"),
        (b'{"input":"a","prompt_name":"nonsense"}', "prompt_name"),
        (b'{"input":[5],"prompt_name":"query"}', "prompt_name"),
        (b'{"input":"a","prompt_name":5}', "prompt_name"),
        (b'{"input":"a","output_dimension":0}', "output_dimension"),
        (b'{"input":"a","output_dimension":9}', "output_dimension"),
        (b'{"input":"a","output_dimension":4,"dimensions":3}', "output_dimension"),
        (b'{"input":"a","normalize":true,"normalized":false}', "normalized"),
        (b'{"input":"a","use_activation":false,"normalized":true}', "use_activation"),
        (b'{"input":"a","normalized":"yes"}', "normalized"),
        (b'{"input":"a","add_special_tokens":null}', "add_special_tokens"),
        (b'{"input":"a","dimensions":-1}', "dimensions"),
        (b'{"input":"a","dimensions":9}', "dimensions"),
        (b'{"input":"a","dimensions":99999999999999999999999999}', "dimensions"),
        (b'{"input":"a","dimensions":4.5}', "dimensions"),
        (b'{"input":"a","dimensions":"4"}', "dimensions"),
        (b'{"input":"a","dimensions":true}', "dimensions"),
        (b'{"input":"a","dimensions":[4]}', "dimensions"),
        # numbers that are none, or too large to be one
        (b'{"input":[' + b"1" * 100_000 + b"]}", "input[0]"),
        (b'{"input":"a","dimensions":' + b"1" * 100_000 + b"}", "dimensions"),
        (b'{"input":[1e999]}', "input[0]"),
        (b'{"input":"a","dimensions":1e999}', "dimensions"),
        (b'{"input":NaN}', None),
        (b'{"input":[Infinity]}', None),
        # no object
        (b"[]", None),
        (b"null", None),
        (b'"a"', None),
        (b"5", None),
        (b"true", None),
        # no JSON
        (b"", None),
        (b" ", None),
        (b"{", None),
        (b'{"input":"a"', None),
        (b'{"input":"a",}', None),
        (b'{"input":"a"} {}', None),
        (b"{'input':'a'}", None),
        (b"input=a", None),
        (b'\xef\xbb\xbf{"input":"a"}', None),  # a byte order mark is no part of JSON
        ('{"input":"a"}'.encode("utf-16"), None),
        # no text
        (b'{"input":"\xff"}', "input"),
        (b'{"input":["a","\xed\xa0\x80"]}', "input"),
        (b'{"input":"a","model":"\xff"}', None),
        (b'{"input":"\\ud800"}', None),
        (b'{"input":["a","\\udc00 b"]}', None),
        (b'{"input":"\x00"}', None),  # allowed as \u0000 only
        (b'{"input":"a\nb"}', None),
        # deep
        (b"[" * MANY, None),
        (b'{"input":' + b"[" * MANY + b"]" * MANY + b"}", None),
        (b'{"other":' + b"[" * MANY + b"]" * MANY + b',"input":"a"}', None),
        (b'{"other":' + b'{"a":' * MANY + b"1" + b"}" * MANY + b',"input":"a"}', None),
    ],
    ids=lambda value: repr(value[:50]) if isinstance(value, bytes) else str(value),
)
def test_what_is_refused_is_named(body: bytes, param: str | None) -> None:
    with pytest.raises((InvalidRequest, EmptyInput, MalformedBody)) as refused:
        request_of(body)

    assert refused.value.param == param
    assert refused.value.message.startswith(param or "the body")
    assert refused.value.__cause__ is None


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize(
    "rest",
    [
        b'"other":{"deep":[1,{}]}',
        b'"other":1e999',
        b'"other":' + b"1" * 100_000,
        b'"input_type":"query"',
        b'"model":null,"user":null,"dimensions":null,"encoding_format":null',
        b'"user":"somebody","model":"any name will do"',
    ],
    ids=lambda rest: repr(rest[:40]),
)
def test_what_is_allowed_beside_the_input(rest: bytes) -> None:
    request = request_of(b'{"input":"a",' + rest + b"}")

    assert request.texts == ["a"]
    assert request.dimensions is None


def test_the_last_of_two_equal_keys_counts() -> None:
    assert request_of(b'{"input":"a","input":["b","c"]}').texts == ["b", "c"]


@pytest.mark.holds("OpenAI's route")
def test_dimensions_go_from_1_to_the_models_own() -> None:
    assert [request_of({"input": "a", "dimensions": wished}).dimensions for wished in (1, DIMENSIONS)] == [1, 8]
    assert request_of({"input": "a", "output_dimension": 4}).dimensions == 4
    assert request_of({"input": "a", "output_dimension": 4, "dimensions": 4}).dimensions == 4
    assert request_of({"input": "a", "output_dimension": 4, "dimensions": 0}).dimensions == 4


@pytest.mark.holds("OpenAI's route")
def test_0_dimensions_are_all() -> None:
    assert request_of({"input": "a", "dimensions": 0}).dimensions is None


@pytest.mark.holds("OpenAI's route")
@pytest.mark.parametrize("name", ["normalize", "normalized", "use_activation"])
@pytest.mark.parametrize("wanted", [True, False, None])
def test_normalizing_by_any_name(name: str, wanted: bool | None) -> None:
    assert request_of({"input": "a", name: wanted}).normalize is wanted
    assert request_of({"input": "a", name: wanted, "normalize": wanted}).normalize is wanted


def test_special_tokens_can_be_left_out() -> None:
    assert [request_of({"input": "a", "add_special_tokens": adds}).add_special_tokens for adds in (True, False)] == [
        True,
        False,
    ]


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, FLOATS),
        ({"encoding_format": None, "embed_dtype": None, "output_dtype": None, "endianness": None}, FLOATS),
        ({"encoding_format": "float"}, FLOATS),
        ({"encoding_format": "base64"}, RowForm(Encoding.BASE64)),
        ({"encoding_format": "bytes"}, RowForm(Encoding.BYTES, container=Container.RAW)),
        ({"encoding_format": "bytes_only"}, RowForm(Encoding.BYTES_ONLY, container=Container.RAW)),
        ({"encoding_format": "int8"}, RowForm(dtype=DType.INT8)),  # Mixedbread's
        ({"output_dtype": "float"}, FLOATS),  # Voyage's
        ({"output_dtype": "binary", "encoding_format": "base64"}, RowForm(Encoding.BASE64, DType.BINARY)),
        ({"embed_dtype": "fp8_e5m2", "endianness": "native"}, RowForm(dtype=DType.FP8_E5M2)),  # vLLM's
        ({"embed_dtype": "float16", "endianness": "big"}, RowForm(dtype=DType.FLOAT16, endianness=Endianness.BIG)),
        ({"embedding_type": "base64"}, RowForm(Encoding.BASE64)),  # Jina's
        ({"embedding_type": "ubinary", "encoding_format": "base64"}, RowForm(Encoding.BASE64, DType.UBINARY)),
        ({"embedding_type": "float", "encoding_format": "base64"}, RowForm(Encoding.BASE64)),  # through OpenAI's SDK
        ({"embed_dtype": "int8", "output_dtype": "int8"}, RowForm(dtype=DType.INT8)),
    ],
)
def test_the_form_of_rows(fields: dict[str, Any], form: RowForm) -> None:
    assert form_of({"input": "a", **fields}) == form


@pytest.mark.holds("Forms of rows")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"embed_dtype": "float64"}, "embed_dtype"),
        ({"output_dtype": "int4"}, "output_dtype"),
        ({"embedding_type": "bits"}, "embedding_type"),
        ({"endianness": "middle"}, "endianness"),
        ({"endianness": 1}, "endianness"),
        ({"embed_dtype": "int8", "output_dtype": "uint8"}, "output_dtype"),
        ({"encoding_format": "int8", "embed_dtype": "binary"}, "embed_dtype"),
        ({"encoding_format": "int8", "embedding_type": "float"}, "embedding_type"),
        ({"encoding_format": "float", "embedding_type": "base64"}, "embedding_type"),
        ({"encoding_format": []}, "encoding_format"),
        ({"encoding_format": ["float"] * 100}, "encoding_format"),
        ({"encoding_format": ["float", "bytes"]}, "encoding_format"),
        ({"encoding_format": ["float", "bits"]}, "encoding_format"),
        ({"encoding_format": ["float", "int8"], "output_dtype": "int8"}, "output_dtype"),
        ({"encoding_format": ["float", "int8"], "endianness": "big"}, "endianness"),
    ],
)
def test_a_form_that_there_is_not(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        form_of({"input": "a", **fields})
    assert refused.value.param == param


@pytest.mark.holds("Forms of rows")
def test_the_accept_header_outranks_the_encoding_format_that_sdks_always_send() -> None:
    raw = RequestOptions(accepts=Container.RAW)

    wanted = {"input": "a", "encoding_format": "base64", "embed_dtype": "float16"}
    assert form_of(wanted, raw) == RowForm(Encoding.BYTES_ONLY, DType.FLOAT16, container=Container.RAW)
    with pytest.raises(InvalidRequest):
        form_of({"input": "a", "encoding_format": "nonsense"}, raw)
