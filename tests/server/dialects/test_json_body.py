"""Bodies that are valid JSON and yet too deep."""

import json
import random
from typing import Any

import msgspec
import pytest

from server.dialects.reading.known_fields import BodyReader
from server.requests.errors import MalformedBody


class Inner(msgspec.Struct):
    text: str | None = None


class Body(msgspec.Struct):
    text: str
    inner: Inner | None = None


BODIES = BodyReader(Body)


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
    assert BODIES.read(body(nested(63, kind=kind))).text == "a"
    for depth in (64, 65, 400, 100_000):
        deep = b'{"text":"a","other":' + b"[" * depth + b"]" * depth + b"}"
        with pytest.raises(MalformedBody):
            BODIES.read(deep if depth > 400 else body(nested(depth, kind=kind)))


@pytest.mark.parametrize("depth", [65, 100_000])
def test_the_refusal_says_that_it_is_the_depth(depth: int) -> None:
    """Also where the decoder itself gives up."""
    with pytest.raises(MalformedBody, match="nested"):
        BODIES.read(b'{"text":"a","other":' + b"[" * depth + b"]" * depth + b"}")


def test_so_it_is_in_an_object_that_is_known() -> None:
    inner = {"text": "b", "other": nested(62, kind="lists")}

    assert BODIES.read(json.dumps({"text": "a", "inner": inner}).encode()).inner == Inner("b")
    inner["other"] = nested(63, kind="lists")
    with pytest.raises(MalformedBody):
        BODIES.read(json.dumps({"text": "a", "inner": inner}).encode())


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
    assert BODIES.read(body(other)).text == "a"


@pytest.mark.holds("Limits")
def test_the_levels_of_any_body_are_counted_right() -> None:
    """Also in bodies of many steps, and where a step ends within a text or within a list."""
    random_ = random.Random(7)
    texts = ["", "[" * 99, ']"[', "\\", '\\"{', "}]" * 50, "a" * 20]
    for _ in range(60):
        values = [nested(random_.randint(0, 62), kind="both"), random_.choice(texts), [random_.choice(texts)] * 9]
        other = [random_.choice(values) for _ in range(random_.choice([1, 50, 2000]))]
        for extra in (62, 63):
            deepest = nested(extra, kind="lists")
            given = body([*other, deepest]) if random_.random() < 0.5 else body([deepest, *other])
            if extra == 62:
                assert BODIES.read(given).text == "a"
            else:
                with pytest.raises(MalformedBody, match="nested deeper than 64"):
                    BODIES.read(given)


@pytest.mark.holds("Limits")
@pytest.mark.parametrize(
    "value", ["[" * 60 + "]" * 60, "{}", '""', '"\\\\\\""'], ids=["lists", "objects", "texts", "backslashes"]
)
def test_megabytes_of_brackets_and_quotes_are_looked_through(value: str) -> None:
    given = '{"text":"a","other":[' + ",".join([value] * (1_000_000 // len(value))) + ",[[]]]}"
    assert BODIES.read(given.encode()).text == "a"
    deep = given.replace("[[]]", "[" * 64 + "]" * 64)
    with pytest.raises(MalformedBody, match="nested deeper than 64"):
        BODIES.read(deep.encode())
