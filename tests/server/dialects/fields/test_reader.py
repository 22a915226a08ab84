"""A field that changes a result in any dialect is honoured by a route or refused by it, never dropped in silence."""

import json
from typing import Any

import msgspec
import pytest

from server.dialects.reading.json_body import KNOWN_FIELDS, FieldsReader
from server.dialects.table import ROUTES
from server.requests.errors import InvalidRequest, MalformedBody
from tests.server.edge import good_body, new_call

ANY_MODEL = {"/", "/invocations"}  # the fields are those of the route that they pick
INPUTS = set(
    [
        "data_1",
        "data_2",
        "documents",
        "ids",
        "input",
        "inputs",
        "instances",
        "items",
        "queries",
        "query",
        "text",
        "texts",
        "text_1",
        "text_2",
        "tokens",
    ]
)
# What changes no result on a route without it: names, order of work, parts of messages or of objects around.
OTHERS = {
    *("model", "name", "user", "request_id", "keep_alive", "priority", "cache_salt"),
    *("add_generation_prompt", "continue_final_message", "return_token_strs", "skip_special_tokens"),
    *("config", "options", "parameters", "property", "outputs"),
}


class Body(msgspec.Struct):
    text: str
    dimensions: int | None = None


BODIES = FieldsReader(Body)


def read(**fields: Any) -> Body:
    return BODIES.read(json.dumps({"text": "a", **fields}).encode())


@pytest.mark.holds("Fields of other dialects")
def test_a_new_field_of_a_body_is_refused_where_it_would_be_dropped() -> None:
    fields = {field.encode_name for route in ROUTES for body in route.bodies for field in msgspec.structs.fields(body)}
    assert fields <= KNOWN_FIELDS.keys()
    assert {name for name in fields if KNOWN_FIELDS[name].neutral is None} == INPUTS | OTHERS


@pytest.mark.holds("Fields of other dialects")
@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.path not in ANY_MODEL], ids=lambda route: route.path
)
def test_every_route_honours_or_refuses_every_known_field(route: Any) -> None:
    bodies = route.bodies
    honoured = {field.encode_name for body in bodies for field in msgspec.structs.fields(body)}
    body = json.loads(good_body(route.path))
    for name, row in KNOWN_FIELDS.items():
        if name in honoured or row.neutral is None:
            continue
        harmless = row.neutral
        for value in (None, *harmless):
            route.decode(new_call(), json.dumps({**body, name: value}).encode())
        for value in ("another", 7, True, {"a": 1}):
            if value in harmless:
                continue
            with pytest.raises(InvalidRequest, match=rf"^{name} ") as refused:
                route.decode(new_call(), json.dumps({**body, name: value}).encode())
            assert refused.value.param == name


@pytest.mark.holds("Fields of other dialects")
def test_fields_in_no_table_are_passed_over() -> None:
    assert read(user="somebody", metadata={"a": [1]}, x=None) == Body("a")


def test_declared_fields_are_the_routes_own() -> None:
    assert read(dimensions=3).dimensions == 3
    assert read(dimensions=3, metadata=1).dimensions == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"normalized": True}, "normalized is not supported on this route"),
        ({"output_dtype": "int8"}, 'output_dtype must be "float" on this route, or be left out'),
        ({"messages": []}, "messages is not supported on this route; send texts instead"),
        ({"endianness": "big"}, 'endianness must be "native" or "little" on this route, or be left out'),
        ({"late_chunking": 0}, "late_chunking must be false on this route, or be left out"),
        ({"autoTruncate": True}, "autoTruncate is not supported on this route; its name here is truncate"),
        ({"prompt": "a" * 10_000}, "prompt is not supported on this route"),
    ],
)
def test_the_refusal_says_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields)
    assert refused.value.message == message


def test_a_field_of_an_inner_object_is_named_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"^parameters\.task ") as refused:
        BODIES.read(b'{"text":"a","task":"x"}', "parameters")
    assert refused.value.param == "parameters.task"


def test_a_foreign_field_is_named_before_what_is_missing() -> None:
    with pytest.raises(InvalidRequest, match="messages"):
        BODIES.read(b'{"messages":[{}]}')
    with pytest.raises(InvalidRequest, match="text is missing"):
        BODIES.read(b'{"messages":null}')


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"text":1}', b'{"text":"a","task":\xff}', b"[" * 1000])
def test_what_is_no_body_is_refused(body: bytes) -> None:
    with pytest.raises((InvalidRequest, MalformedBody)):
        BODIES.read(body)
