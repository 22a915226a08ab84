"""Bodies that are valid JSON and yet too deep, or made of too many lists and objects."""

import asyncio
import json
import random
from typing import Any

import msgspec
import pytest

from server.dialects.reading.json_body import LARGE_BYTES, MAX_LISTS, FieldsReader, check_large
from server.requests.errors import MalformedBody
from tests.server.edge import Edge, call
from tests.server.loop_share import turns_during


class Inner(msgspec.Struct):
    text: str | None = None


class Body(msgspec.Struct):
    text: str
    inner: Inner | None = None


BODIES = FieldsReader(Body)


def read(given: bytes) -> Body:
    """As a frontend reads a body."""
    if len(given) > LARGE_BYTES:
        asyncio.run(check_large(given))
    return BODIES.read(given)


def body(other: Any) -> bytes:
    return json.dumps({"text": "a", "other": other}).encode()


def nested(depth: int, *, kind: str) -> Any:
    """Lists, objects, or both in turn."""
    value: Any = 5
    for level in range(depth):
        value = [value] if kind == "lists" or (kind == "both" and level % 2) else {"a": value}
    return value


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("kind", ["lists", "objects", "both"])
def test_a_field_that_is_passed_over_may_be_nested_64_levels_deep_with_the_body(kind: str) -> None:
    assert read(body(nested(63, kind=kind))).text == "a"
    for depth in (64, 65, 400, 100_000):
        deep = b'{"text":"a","other":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(MalformedBody):
            read(deep if depth > 400 else body(nested(depth, kind=kind)))


@pytest.mark.parametrize("depth", [65, 100_000])
def test_the_refusal_says_that_it_is_the_depth(depth: int) -> None:
    """Also where the decoder itself gives up."""
    with pytest.raises(MalformedBody, match="nested"):
        read(b'{"text":"a","other":' + b"[" * depth + b"]" * depth + b"}")


def test_so_it_is_in_an_object_that_is_known() -> None:
    inner = {"text": "b", "other": nested(62, kind="lists")}

    assert read(json.dumps({"text": "a", "inner": inner}).encode()).inner == Inner("b")
    inner["other"] = nested(63, kind="lists")
    with pytest.raises(MalformedBody):
        read(json.dumps({"text": "a", "inner": inner}).encode())


@pytest.mark.parametrize(
    "other",
    [
        "[" * 1000,
        ["{[" * 100, '"' + "[" * 100, "\\" + "[" * 100 + "\\"],
        [[] for _ in range(1000)],
        [{"a": [[]], "b": "]"}] * 1000,
        {"[" * 100: "{" * 100},
    ],
    ids=["text", "quotes and backslashes", "many beside each other", "objects", "names"],
)
def test_brackets_in_texts_and_beside_each_other_are_no_levels(other: Any) -> None:
    assert read(body(other)).text == "a"


@pytest.mark.holds("Limits")
def test_the_levels_of_any_body_are_counted_right() -> None:
    """Also in bodies of many steps, and where a step ends within a text or within a list."""
    random_ = random.Random(7)
    texts = ["", "[" * 99, ']"[', "\\", '\\"{', "}]" * 50, "a" * 20]
    for _ in range(25):
        values = [nested(random_.randint(0, 62), kind="both"), random_.choice(texts), [random_.choice(texts)] * 9]
        other = [random_.choice(values) for _ in range(random_.choice([1, 50, 2000]))]
        for extra in (62, 63):
            deepest = nested(extra, kind="lists")
            given = body([*other, deepest]) if random_.random() < 0.5 else body([deepest, *other])
            if extra == 62:
                assert read(given).text == "a"
            else:
                with pytest.raises(MalformedBody, match="nested deeper than 64"):
                    read(given)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    "value", ["[" * 60 + "]" * 60, "{}", '""', '"\\\\\\""'], ids=["lists", "objects", "texts", "backslashes"]
)
def test_megabytes_of_brackets_and_quotes_are_looked_through(value: str) -> None:
    given = '{"text":"a","other":[' + ",".join([value] * (500_000 // len(value))) + ",[[]]]}"
    assert read(given.encode()).text == "a"
    deep = given.replace("[[]]", "[" * 64 + "]" * 64)
    with pytest.raises(MalformedBody, match="nested deeper than 64"):
        read(deep.encode())


@pytest.mark.holds("Limits")
@pytest.mark.parametrize("one", ["[]", "{}", '{"a":[]}'])
def test_a_large_body_has_so_many_lists_and_objects(one: str) -> None:
    """The body itself and the list of them count too; brackets in texts do not."""
    num = (MAX_LISTS - 2) // (one.count("[") + one.count("{"))
    text = "[{" * MAX_LISTS
    assert read(f'{{"text":"{text}","other":[{",".join([one] * num)}]}}'.encode()).text == text
    with pytest.raises(MalformedBody, match="more than 262144 lists and objects"):
        read(f'{{"text":"a","other":[{",".join([one] * (num + 1))}]}}'.encode())


@pytest.mark.parametrize("num_before", range(4))
@pytest.mark.parametrize("num_backslashes", [1, 2, 3, 2 * LARGE_BYTES + 1])
def test_an_escape_may_lie_across_pieces(num_before: int, num_backslashes: int) -> None:
    """Here an escaped quote is followed by brackets that are text, and one that is not escaped by some that are not."""
    start = '{"text":"'
    filling = "a" * (LARGE_BYTES - len(start) - num_before)
    is_escaped = num_backslashes % 2
    end = '"' if is_escaped else ',"other":' + "[" * 64 + "]" * 64
    given = f'{start}{filling}{chr(92) * num_backslashes}"{"[" * 100 if is_escaped else ""}{end}}}'.encode()
    if is_escaped:
        assert read(given).text.endswith("[" * 100)
    else:
        with pytest.raises(MalformedBody, match="nested deeper than 64"):
            read(given)


def test_other_requests_run_while_a_large_body_is_looked_through() -> None:
    """Neither brackets, nor texts, nor backslashes hold the event loop for more than a piece."""
    for other in ("[]," * 60_000, '"[",' * 45_000, '"' + "\\\\" * 45_000 + '",'):
        given = b'{"other":[' + other.encode() + b"0]}"
        assert turns_during(check_large(given)) >= len(given) // LARGE_BYTES


def test_a_route_refuses_them_before_it_decodes() -> None:
    async def ask(given: bytes) -> tuple[int, str]:
        called = await call(Edge(max_bytes=1 << 20).app, "POST", "/v1/embeddings", given)
        return called.status, called.error()["message"]

    many, deep = b"[]," * (MAX_LISTS + 1), b"[" * LARGE_BYTES
    assert asyncio.run(ask(b'{"input":"a","other":[' + many + b"0]}")) == (
        400,
        "the body has more than 262144 lists and objects",
    )
    assert asyncio.run(ask(deep + b" " * 10)) == (400, "the body is nested deeper than 64 levels")
