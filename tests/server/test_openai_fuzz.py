"""Whatever comes as a body is decoded or refused, and no refusal repeats a part of it."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import RequestError, openai_answer
from server.openai import decode
from server.request_headers import Wishes
from tests.server.edge import one_model

LONGEST_ECHO = 7  # characters in a row that may be the same by chance

# none of our own messages is written with these
secrets = st.text("QXZJ 0123456789日本語🙂é\n\t\0\\\"'{}[]", min_size=LONGEST_ECHO + 1, max_size=30)
numbers = st.one_of(st.integers(), st.floats(allow_nan=True, allow_infinity=True), st.integers(10**20, 10**40))
leaves = st.one_of(secrets, secrets, numbers, st.booleans(), st.none())
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(secrets, inner, max_size=3))
ids = st.lists(st.integers(-5, 200), min_size=1, max_size=5)
inputs = st.one_of(secrets, st.lists(secrets, max_size=6), ids, st.lists(ids, max_size=6), values)
fields = {
    "model": secrets | values,
    "encoding_format": st.sampled_from(["float", "base64", "bytes"]) | values,
    "dimensions": st.integers(-2, 20) | values,
    "user": secrets | values,
}
bodies = st.one_of(st.fixed_dictionaries({"input": inputs}, optional=fields), values)

WAYS = ("cut", "drop", "double", "flip", "insert")


@st.composite
def mutated(draw: st.DrawFn, body: bytes) -> bytes:
    """The body with up to three bytes or stretches of it changed."""
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        match draw(st.sampled_from(WAYS)):
            case "cut":
                body = body[:at]
            case "drop":
                body = body[:at] + body[at + draw(st.integers(1, 5)) :]
            case "double":
                body = body[:at] + body[max(0, at - 10) : at] + body[at:]
            case "flip":
                body = body[:at] + bytes([draw(st.integers(0, 255))]) + body[at + 1 :]
            case "insert":
                body = (
                    body[:at] + draw(st.sampled_from([b'"', b"\\", b"[", b"{", b",", b"1e999", b"\\ud800"])) + body[at:]
                )
    return body


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, inner in value.items() for text in [key, *texts_in(inner)]]
    if isinstance(value, list):
        return [text for inner in value for text in texts_in(inner)]
    return [str(value)]


def is_echoed(text: str, message: str) -> bool:
    stretch = LONGEST_ECHO + 1
    return any(text[at : at + stretch] in message for at in range(len(text) - stretch + 1))


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(data=st.data(), value=bodies)
def test_any_body_is_decoded_or_refused_without_an_echo(data: st.DataObject, value: Any) -> None:
    names = {"input", "model", "encoding_format", "dimensions", "user"}
    body = data.draw(mutated(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()))
    try:
        request, _ = decode(body, Wishes(), one_model(), max_items=4)
    except RequestError as error:
        said = openai_answer(error).body.decode()
        assert [text for text in texts_in(value) if text not in names and is_echoed(text, said)] == []
    else:
        assert (request.texts is None) != (request.token_ids is None)
        assert request.num_items >= 1


def test_an_echo_would_be_seen() -> None:
    assert is_echoed("QXZJ0123456789", 'input[0]: "XZJ01234" is not valid')
    assert not is_echoed("QXZJ0123456789", "input[0]: expected `str`, got `int`")
