"""The places of values in JSON that decoders refuse as a whole."""

import json
from typing import Any

import pytest

from wire.json_values import MAX_DEPTH, is_wrong, marked, place_of, value_at, values, without_escapes

HALF = rb'"a\ud83d"'


def wrong_places(body: bytes) -> list[str]:
    return [place_of(value.path) for value in values(without_escapes(body)) if is_wrong(body, value)]


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (b'{"input":["a",%b,"b",{"text":%b}]}' % (HALF, HALF), ["input[1]", "input[3].text"]),
        (rb'{"input":["\ud83d\ude42","\\ud83d","\"\\","\ude42\ud83d"]}', ["input[3]"]),
        (b'{"a":{"b":[[1,NaN],-Infinity,01,1e400]}}', ["a.b[0][1]", "a.b[1]", "a.b[2]"]),
        (b'{"c":"\xff","d":"\xed\xa0\xbd"}', ["c", "d"]),
        (b'{"a":"b\nc","d":"\\x","e":tru}', ["a", "d", "e"]),
        (b'{"a":[],"b":{},"c":[{}],"d":%b}' % HALF, ["d"]),
        (b'{"some name":[%b]}' % HALF, [""]),  # a name is the client's, unless it looks like a field's
        (b"[" + HALF + b"]", ["[0]"]),
        (b'{"a":"b', ["a"]),
        (b'{"a":"b"]},"c":NaN}', []),
        (b"input=a", [""]),
        (b"", []),
        (b"}{,:", []),
    ],
)  # fmt: skip
def test_what_no_decoder_takes_is_found(body: bytes, places: list[str]) -> None:
    assert wrong_places(body) == places


def test_what_lies_too_deep_is_the_last() -> None:
    body = b'{"a":[' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"," + HALF + b"]}"

    assert wrong_places(body) == ["a" + "[0]" * MAX_DEPTH]


@pytest.mark.parametrize("content", [{"a": [1, "\\", '"', {"b": None}], "c": "\u2028[{"}, ["[", '"]', "\\\\"], "a", 5])
def test_of_right_json_every_value_has_its_place(content: Any) -> None:
    body = json.dumps(content).encode()

    found = list(values(without_escapes(body)))

    assert len(without_escapes(body)) == len(body)
    assert not any(is_wrong(body, value) for value in found)
    for value in found:
        inner: Any = content
        for step in value.path:
            inner = inner[step]
        if not isinstance(inner, list | dict):
            assert json.loads(body[value.start : value.stop]) == inner


def test_a_mark_takes_the_place_of_values() -> None:
    body = b'{"a":[%b,1,%b]}' % (HALF, HALF)
    wrong = [value for value in values(without_escapes(body)) if is_wrong(body, value)]

    assert marked(body, wrong, b'"x"') == b'{"a":["x",1,"x"]}'
    assert marked(body, [], b'"x"') == body


def test_a_value_is_found_by_its_place_if_it_is_right() -> None:
    body = b'{"b":{"id":1},"id":"x","c":%b,"d":[' % HALF

    assert value_at(body, ("id",), most=9) == b'"x"'
    assert value_at(body, ("b", "id"), most=9) == b"1"
    assert value_at(body, ("c",), most=9) is None
    assert value_at(body, ("e",), most=9) is None
    assert value_at(body, ("id",), most=3) is None  # it is the fourth
