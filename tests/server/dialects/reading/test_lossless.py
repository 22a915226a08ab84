"""Whole floats for integers, and "true" and "false" for booleans: in every field of every route, and nothing else."""

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from msgspec import inspect

from server.dialects.reading.json_body import KNOWN_FIELDS, LosslessDecoder, parse
from server.dialects.table import ROUTES
from server.features.jobs.routes import _decode as decode_async
from server.requests.errors import InvalidRequest, RequestError
from tests.server.edge import good_body, new_call, route_of


class Inner(msgspec.Struct):
    num_ctx: int | None = None


class Body(msgspec.Struct):
    number: int = 0
    flag: bool | None = None
    either: bool | str | None = None
    inner: Inner | None = None
    ids: list[int] = []
    mixed: list[str | list[int]] = []


BODIES = LosslessDecoder[Body](Body)


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b'{"number":2.0}', Body(2)),
        (b'{"number":-0.0}', Body(0)),
        (b'{"number":1e2}', Body(100)),
        (b'{"number":1.5E+1}', Body(15)),
        (b'{"number":9007199254740991.0}', Body(2**53 - 1)),
        (b'{"flag":"true"}', Body(flag=True)),
        (b'{"flag":"false","number":7}', Body(7, flag=False)),
        (b'{"inner":{"num_ctx":8.0,"other":2.5}}', Body(inner=Inner(8))),
        (b'{"ids":[1.0,2,3e0]}', Body(ids=[1, 2, 3])),
        (b'{"mixed":["2.0",[2.0],["a"]]}', "mixed[2][0]"),
        (b'{"mixed":["2.0",[2.0,3]]}', Body(mixed=["2.0", [2, 3]])),
        (b'{"number":2.0,"number":3.0}', Body(3)),  # the last one counts, as ever
        (b'{"either":"true","number":1.0}', Body(1, either="true")),
        (b'{"number":2.5}', "number"),
        (b'{"number":1e400}', "number"),
        (b'{"number":1e30}', "number"),
        (b'{"number":9007199254740993.0}', "number"),  # a float has no room for its last digit
        (b'{"number":4503599627370496.5}', "number"),  # a float is whole there, and this is not
        (b'{"number":0.99999999999999999999}', "number"),
        (b'{"number":1e-400}', "number"),
        (b'{"number":1e-99999999999999999999}', "number"),
        (b'{"ids":[9007199254740993.0]}', "ids[0]"),
        (b'{"ids":[1,4503599627370496.5]}', "ids[1]"),
        (b'{"ids":[0.99999999999999999999]}', "ids[0]"),
        (b'{"ids":[1e-400]}', "ids[0]"),
        (b'{"ids":[100e-2,1.50e1,9007199254740991.0]}', Body(ids=[1, 15, 2**53 - 1])),
        (b'{"number":"2"}', "number"),
        (b'{"number":true}', "number"),
        (b'{"number":"true"}', "number"),
        *((b'{"flag":%b}' % flag, "flag") for flag in (b'"True"', b'" true"', b'"1"', b"1", b"0.0", b'"yes"', b'""')),
        (b'{"inner":{"num_ctx":8.5}}', "inner.num_ctx"),
        (b'{"ids":[1.0,2.5]}', "ids[1]"),
        (b'{"ids":[1.0,"2"]}', "ids[1]"),
        (b'{"ids":[1.0,true]}', "ids[1]"),
        (b'{"ids":' + json.dumps([1.0] * 5000 + [2.5]).encode() + b"}", "ids[0]"),
        (b'{"number":2.0,"flag":"no"}', "flag"),  # the one that is wrong
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_lossless_is_taken(given: bytes, expected: Body | str) -> None:
    if isinstance(expected, Body):
        assert parse(BODIES, given) == expected
    else:
        with pytest.raises(InvalidRequest) as refused:
            parse(BODIES, given)
        assert refused.value.param == expected


@dataclass
class Both:
    number: int
    flag: bool


class Pair(NamedTuple):
    number: int
    flag: bool


class Named(TypedDict):
    number: int


class Tagged(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    number: int


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (dict[str, int], b'{"a":2.0,"b":3}', {"a": 2, "b": 3}),
        (dict[str, list[bool]], b'{"a":["true"]}', {"a": [True]}),
        (tuple[int, ...], b"[2.0,3]", (2, 3)),
        (tuple[int, bool], b'[2.0,"true"]', (2, True)),
        (set[int], b"[2.0]", {2}),
        (list[int | None], b"[null,2.0]", [None, 2]),
        (Both, b'{"number":2.0,"flag":"true","other":2.5}', Both(2, flag=True)),
        (Pair, b'[2.0,"true"]', Pair(2, flag=True)),
        (Named, b'{"number":2.0}', {"number": 2}),
        (Tagged, b'{"type":"Tagged","number":2.0}', Tagged(2)),
        (Literal[1, 2], b"2.0", 2),
        (Annotated[int, msgspec.Meta(extra_json_schema={})] | None, b"2.0", 2),
        (bool | str, b'"true"', "true"),
        (tuple[bool | str, int], b'["true",2.0]', ("true", 2)),
    ],
)
def test_types_of_all_kinds_take_them(kind: Any, given: bytes, found: Any) -> None:
    assert LosslessDecoder(kind).decode(given) == found


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (tuple[int, bool], b'[2.0,"true",2.5]'),
        (tuple[int, bool], b"[2.0]"),
        (Tagged, b'{"type":"Tagged","number":2.0,"other":1}'),
        (Tagged, b'{"type":"Another","number":2.0}'),
        (Literal[1, 2], b"3.0"),
        (dict[str, int], b'{"a":2.5}'),
    ],
)
def test_nothing_is_left_out_of_a_value(kind: Any, given: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        LosslessDecoder(kind).decode(given)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    "values",
    [
        b'["a",' + b"1," * 50_000 + b"1]",
        b'["a"' + b",null" * 50_000 + b"]",
        b"[" + b",".join([b"[" + b"1," * 99 + b'"x"]'] * 500) + b"]",
        b"[" + b",".join([b'{"text":"a","b":1}'] * 50_000) + b',1.5,[1.0],{"text":1}]',
    ],
    ids=["numbers", "nulls", "lists", "objects"],
)
def test_few_of_many_values_are_looked_at(values: bytes) -> None:
    """Each takes Python as long as a decoder takes for a hundred."""
    num_calls = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event == "call"

    sys.setprofile(counted)
    try:
        with pytest.raises(InvalidRequest):
            parse(BODIES, b'{"mixed":' + values + b',"number":2.0}')
    finally:
        sys.setprofile(None)

    assert num_calls < 40_000


def test_commas_of_texts_and_lists_do_not_count() -> None:
    text, ids = '1,"[' * 9000, [1.0] * 9000
    body = json.dumps({"mixed": [text, ids, text, ids]}).encode()

    assert parse(BODIES, body).mixed == [text, [1] * 9000, text, [1] * 9000]


def outcome(route: Any, body: dict[str, Any]) -> object:
    """The request, or why there is none."""
    try:
        return route.decode(new_call(), json.dumps(body).encode())
    except RequestError as error:
        return error.message


def spelled(kind: Any) -> list[tuple[Any, Any]]:
    """Values of a field in JSON's own spelling and in the other one."""
    wanted = inspect.type_info(kind)
    kinds = {type(getattr(each, "type", each)) for each in getattr(wanted, "types", (wanted,))}
    floats = [(number, float(number)) for number in (0, 1, 3)] if inspect.IntType in kinds else []
    words = [(flag, json.dumps(flag)) for flag in (True, False)] if inspect.BoolType in kinds else []
    return floats + words


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_field_of_every_route_takes_them(route: Any) -> None:
    good = json.loads(good_body(route.path))
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(route.body)}
    for name, kind in fields.items():
        if kind is msgspec.Raw or name in good:
            continue
        for own, other in spelled(kind):
            assert outcome(route, {**good, name: other}) == outcome(route, {**good, name: own}), (name, other)


@pytest.mark.holds("Requests and answers", "Fields of other dialects")
def test_a_field_that_changes_nothing_may_be_spelled_so_too() -> None:
    route = route_of("/decode")
    for name, row in KNOWN_FIELDS.items():
        for value in row.neutral or ():
            if isinstance(value, bool | int):
                other = json.dumps(value) if isinstance(value, bool) else float(value)
                assert outcome(route, {"ids": [5], name: other}) == outcome(route, {"ids": [5]})
    for long in ("1.000000000000000000001", "0.00000000000000000001"):
        with pytest.raises(InvalidRequest):
            route.decode(new_call(), b'{"ids":[5],"max_chunks_per_doc":%b}' % long.replace("0.", "0.5").encode())


@pytest.mark.holds("Requests and answers")
@pytest.mark.parametrize(
    ("path", "body", "plain"),
    [
        ("/v1/embeddings", b'{"input":[1.0,2.0]}', b'{"input":[1,2]}'),
        ("/v1/embeddings", b'{"input":[[1.0],[2,3e0]]}', b'{"input":[[1],[2,3]]}'),
        ("/v1/embeddings", b'{"input":["a",[2.0]]}', b'{"input":["a",[2]]}'),
        ("/v1/rerank", b'{"query":"a","documents":["b"],"return_documents":"true","top_n":1.0}',
         b'{"query":"a","documents":["b"],"return_documents":true,"top_n":1}'),
        ("/api/embed", b'{"input":"a","options":{"num_ctx":8.0}}', b'{"input":"a","options":{"num_ctx":8}}'),
        ("/decode", b'{"ids":[[5.0]],"skip_special_tokens":"false"}', b'{"ids":[[5]],"skip_special_tokens":false}'),
        ("/embed", b'{"inputs":"a","truncate":"true"}', b'{"inputs":"a","truncate":true}'),
        ("/vertex", b'{"instances":[{"inputs":"a","dimensions":2.0}]}',
         b'{"instances":[{"inputs":"a","dimensions":2}]}'),
    ],
)  # fmt: skip
def test_ids_and_inner_objects_take_them(path: str, body: bytes, plain: bytes) -> None:
    route = route_of(path)

    found, wanted = (str(route.decode(new_call(), each)) for each in (body, plain))

    assert found.replace("2.0", "2") == wanted or path == "/vertex"


@pytest.mark.holds("Requests and answers")
def test_async_requests_take_them() -> None:
    body = decode_async(new_call(), b'{"model_input":{},"priority":1.0,"inference_retry_config":{"max_attempts":2.0}}')

    assert (body.priority, body.inference_retry_config and body.inference_retry_config.max_attempts) == (1, 2)
    with pytest.raises(InvalidRequest, match="priority"):
        decode_async(new_call(), b'{"model_input":{},"priority":3.0}')
