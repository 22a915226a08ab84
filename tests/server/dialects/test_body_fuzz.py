"""Whatever comes as a body is decoded or refused, on every route, and no refusal repeats a part of it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.dialects.route import Route
from server.dialects.sparse import KINDS
from server.dialects.table import ROUTES
from server.requests.classify import ClassifyRequest, ClassifyTokensRequest
from server.requests.errors import RequestError
from server.requests.rerank import RerankRequest
from server.requests.work import DecodeRequest, EmbedRequest, TokenizeRequest
from tests.server.edge import new_call

BY_PATH = {route.path: route for route in ROUTES}
LONGEST_ECHO = 7  # characters in a row that may be the same by chance

# none of our own messages is written with these
secrets = st.text("QXZJ 0123456789日本語🙂é\n\t\0\\\"'{}[]", min_size=LONGEST_ECHO + 1, max_size=30)
numbers = st.one_of(st.integers(), st.floats(allow_nan=True, allow_infinity=True), st.integers(10**20, 10**40))
leaves = st.one_of(secrets, secrets, numbers, st.booleans(), st.none())
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(secrets, inner, max_size=3))
ids = st.lists(st.integers(-5, 200), min_size=1, max_size=5)
objects = st.fixed_dictionaries({"text": secrets | values}, optional={"image": values, "id": values})
inputs = st.one_of(
    secrets,
    st.lists(secrets, max_size=6),
    ids,
    st.lists(ids, max_size=6),
    st.lists(secrets | ids | objects, max_size=4),
    values,
)
dimensions = st.integers(-2, 20) | values
booleans = st.booleans() | values
side = st.sampled_from(["left", "Left", "right", "Right"]) | values
form = st.sampled_from(["float", "base64", "bytes", "int8"]) | values
word = st.sampled_from(["query", "document", "search_query", "clustering", "image"]) | secrets | values
some_text = secrets | values
documents = st.lists(secrets | st.fixed_dictionaries({"text": secrets}, optional={"title": values}), max_size=6)
similar = st.fixed_dictionaries({"source_sentence": some_text, "sentences": st.lists(secrets, max_size=6) | values})
text_lists = st.lists(st.lists(secrets, min_size=1, max_size=2), min_size=1, max_size=5)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text") | values}, optional={"text": some_text}), max_size=3)
contents = st.lists(st.fixed_dictionaries({"content": parts}), max_size=5)
messages = st.lists(
    st.fixed_dictionaries({"role": secrets}, optional={"content": secrets | parts | values}), max_size=3
)
how = {
    "truncate": st.sampled_from(["NONE", "START", "END"]) | booleans,
    "truncation": booleans,
    "truncation_direction": side,
    "truncation_side": side,
    "truncate_prompt_tokens": dimensions,
    "max_tokens": dimensions,
    "prompt_name": some_text,
    "prompt": some_text,
    "input_type": word,
    "task": word,
}
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    **how,
    "input": inputs | documents,
    "inputs": inputs | similar | text_lists | contents,
    "instances": st.lists(st.fixed_dictionaries({"inputs": inputs}, optional=how), max_size=5) | values,
    "text": inputs,
    "documents": documents | inputs,
    "messages": messages | st.lists(messages, max_size=3) | values,
    "parameters": st.fixed_dictionaries({}, optional=how) | values,
    "config": st.fixed_dictionaries(
        {}, optional={"pooling_strategy": secrets, "task_type": word, "dimensions": dimensions}
    )
    | values,
    "options": st.fixed_dictionaries({}, optional={"num_ctx": dimensions, "seed": values}) | values,
    "outputs": st.lists(st.sampled_from(["dense", "sparse", "multi_vector"]), max_size=3) | values,
    "embedding_types": st.lists(st.sampled_from(["float", "int8", "base64"]) | secrets, max_size=3) | values,
    "aggregation_strategy": st.sampled_from(["none", "max"]) | values,
    "on_error": st.sampled_from(["null", "fail"]) | values,
    "rank_fields": st.lists(secrets, max_size=2) | values,
    **dict.fromkeys(("texts", "items", "data_1", "data_2", "text_1", "text_2", "queries", "ids", "tokens"), inputs),
    **dict.fromkeys(("query", "model", "user", "instruction", "name"), some_text),
    **dict.fromkeys(("dimensions", "output_dimension", "top_n", "top_k", "max_tokens_per_doc", "priority"), dimensions),
    **dict.fromkeys(("encoding_format", "embed_dtype", "output_dtype", "embedding_type"), form),
    **dict.fromkeys(("normalize", "normalized", "raw_scores", "use_activation", "return_documents"), booleans),
}
OWN_FIELDS = {field.encode_name for route in ROUTES for body in route.bodies for field in msgspec.structs.fields(body)}
# a refusal may name them
# Words of our own, which messages name.
NAMES = {*OWN_FIELDS, *BY_NAME, *KINDS, "image", "source_sentence", "sentences", "task_type", "pooling_strategy"}


@st.composite
def bodies(draw: st.DrawFn, route: Route) -> Any:
    """A body that the route might take: what one of its forms needs, and a few of the fields that it may have."""
    if not draw(st.integers(0, 4)):
        return draw(values)
    fields = msgspec.structs.fields(draw(st.sampled_from(route.bodies)))
    more = [field.encode_name for field in fields if not field.required]
    chosen = {field.encode_name for field in fields if field.required}
    chosen.update(draw(st.lists(st.sampled_from(more), max_size=10)))
    return {name: draw(BY_NAME.get(name, values)) for name in sorted(chosen)}


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


# the others are the same twice
TWICE = {
    "/embeddings",
    "/invocations",
    "/v1/classify",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/reranking",
    "/v1/embed",
}
EACH_PATH = pytest.mark.parametrize("path", sorted(BY_PATH.keys() - TWICE))


@pytest.mark.holds("Errors come from one table and never repeat a user's text", "Errors")
@EACH_PATH
@settings(max_examples=20, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_body_is_decoded_or_refused_without_an_echo(path: str, data: st.DataObject) -> None:
    decode_or_refuse(path, data)


@pytest.mark.full
@EACH_PATH
@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_so_is_any_of_many_more(path: str, data: st.DataObject) -> None:
    decode_or_refuse(path, data)


def decode_or_refuse(path: str, data: st.DataObject) -> None:
    route, call = BY_PATH[path], new_call()
    value = data.draw(bodies(route))
    body = data.draw(mutated(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()))
    try:
        decoded = route.decode(call, body)
    except RequestError as error:
        said = bytes(call.error_shape(error).body).decode()
        assert [text for text in texts_in(value) if text not in NAMES and is_echoed(text, said)] == []
    else:
        for one in decoded if isinstance(decoded, list) else [decoded]:  # a list is of /vertex
            request = one.request if path == "/vertex" else one
            if not path.startswith("/api/"):  # Ollama's clients may ask for nothing
                check(request.work if path == "/pooling" else request)


def check(request: object) -> None:
    """There is something to do."""
    if isinstance(request, EmbedRequest | ClassifyRequest | ClassifyTokensRequest):
        assert request.items
    elif isinstance(request, RerankRequest):
        assert request.queries
        assert all(request.queries)
        assert request.documents
        assert all(request.documents)
    elif isinstance(request, TokenizeRequest):
        assert request.items
        assert all(request.items)
    else:
        assert isinstance(request, DecodeRequest)
        assert request.items


def test_an_echo_would_be_seen() -> None:
    assert is_echoed("QXZJ0123456789", 'input[0]: "XZJ01234" is not valid')
    assert not is_echoed("QXZJ0123456789", "input[0]: expected `str`, got `int`")
