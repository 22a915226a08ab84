"""Whatever comes as a body is decoded or refused, on every route, and no refusal repeats a part of it."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.dialects.invocations import Chosen
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
how = {
    "truncate": booleans,
    "truncation_direction": st.sampled_from(["left", "Left", "right", "Right"]) | values,
    "truncation_side": st.sampled_from(["left", "right"]) | values,
    "truncate_prompt_tokens": dimensions,
    "max_tokens": dimensions,
    "prompt_name": secrets | values,
    "prompt": secrets | values,
    "input_type": st.sampled_from(["query", "document", "clustering"]) | secrets | values,
    "task": secrets | values,
}
similar = st.fixed_dictionaries(
    {"source_sentence": secrets | values, "sentences": st.lists(secrets, max_size=6) | values}
)
parameters = st.fixed_dictionaries({}, optional=how) | values


@dataclass(frozen=True)
class Case:
    """Bodies that a route might take."""

    required: dict[str, st.SearchStrategy[Any]]
    optional: dict[str, st.SearchStrategy[Any]] = field(default_factory=dict)

    @property
    def bodies(self) -> st.SearchStrategy[Any]:
        return st.one_of(st.fixed_dictionaries(self.required, optional={"model": secrets, **self.optional}), values)

    @property
    def names(self) -> set[str]:
        """Fields, which a refusal may name."""
        return {
            "model",
            "text",
            "image",
            "source_sentence",
            "sentences",
            "parameters",
            "task_type",
            "pooling_strategy",
            "dimensions",
            *self.required,
            *self.optional,
            *how,
        }


EMBED = {"normalize": booleans, "dimensions": dimensions, **how}
OPENAI = Case(
    {"input": inputs},
    {
        "encoding_format": st.sampled_from(["float", "base64", "bytes"]) | values,
        "dimensions": dimensions,
        "user": secrets | values,
        "output_dimension": dimensions,
        "normalized": booleans,
        **how,
    },
)
documents = (
    st.lists(secrets | st.fixed_dictionaries({"text": secrets}, optional={"title": values}), max_size=6) | values
)
RERANK = Case(
    {"query": secrets | values},
    {
        "texts": st.lists(secrets, max_size=6) | values,
        "documents": documents,
        "input": documents,
        "top_n": dimensions,
        "top_k": dimensions,
        "truncation": booleans,
        "max_tokens_per_doc": dimensions,
        "instruction": secrets | values,
        "rank_fields": st.lists(secrets, max_size=2) | values,
        "encoding_format": st.sampled_from(["float", "bytes"]) | values,
        "return_documents": booleans,
        **how,
    },
)
HYBRID = {
    "outputs": st.lists(st.sampled_from(["dense", "sparse", "multi_vector"]), max_size=3) | values,
    "normalize": booleans,
    "input_type": st.sampled_from(["query", "document"]) | values,
    **how,
}
SCORES = {"raw_scores": booleans, **how}
text_lists = inputs | st.lists(st.lists(secrets, min_size=1, max_size=2), min_size=1, max_size=5)
options = st.fixed_dictionaries({}, optional={"num_ctx": dimensions, "seed": values}) | values
config = (
    st.fixed_dictionaries(
        {}, optional={"pooling_strategy": secrets, "task_type": secrets | st.just("query"), "dimensions": dimensions}
    )
    | values
)
CLASSIFY = Case(
    {"input": inputs},
    {"use_activation": booleans, "raw_scores": booleans, "messages": values, "user": secrets | values},
)
contents = st.lists(
    st.fixed_dictionaries(
        {
            "content": st.lists(
                st.fixed_dictionaries({"type": st.just("text") | values}, optional={"text": secrets | values}),
                max_size=3,
            )
        }
    ),
    max_size=5,
)
COHERE = Case(
    {},
    {
        "texts": inputs,
        "inputs": contents | values,
        "images": values,
        "input_type": st.sampled_from(["search_query", "image"]) | values,
        "embedding_types": st.lists(st.sampled_from(["float", "int8", "base64"]) | secrets, max_size=3) | values,
        "output_dimension": dimensions,
        "truncate": st.sampled_from(["NONE", "START", "END"]) | values,
        "max_tokens": dimensions,
        "priority": dimensions,
        "on_error": st.just("null") | values,
    },
)
ANY = Case({"inputs": inputs | similar}, {"parameters": parameters, **EMBED})
CASES = {
    "/api/embed": Case(
        {}, {"input": inputs, "truncate": booleans, "dimensions": dimensions, "options": options, "keep_alive": values}
    ),
    "/api/embeddings": Case({}, {"prompt": secrets | values, "options": options, "keep_alive": values}),
    "/api/show": Case({}, {"name": secrets | values}),
    "/vectors": Case({}, {"text": secrets | values, "texts": inputs, "config": config}),
    "/v1/embeddings": OPENAI,
    "/embeddings": OPENAI,
    "/embed": Case({"inputs": inputs}, EMBED),
    "/embed_all": Case({"inputs": inputs}, how),
    "/embed_sparse": Case({"inputs": inputs}, how),
    "/embed_hybrid": Case({"inputs": inputs}, HYBRID),
    "/predict": Case({"inputs": text_lists}, SCORES),
    "/predict_tokens": Case(
        {"inputs": text_lists},
        {"aggregation_strategy": st.sampled_from(["none", "max"]) | values, **SCORES},
    ),
    "/classify": CLASSIFY,
    "/v1/classify": CLASSIFY,
    "/similarity": Case({"inputs": similar}, {"parameters": parameters}),
    "/rerank": RERANK,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/v1/reranking": RERANK,
    "/": ANY,
    "/invocations": ANY,
    "/tokenize": Case(
        {"inputs": inputs},
        {"add_special_tokens": booleans, "prompt_name": secrets | values},
    ),
    "/decode": Case({"ids": inputs}, {"skip_special_tokens": booleans}),
    "/v1/embed": COHERE,
    "/v2/embed": COHERE,
    "/v1/tokenize": Case({"text": inputs}),
    "/v1/detokenize": Case({"tokens": inputs}),
}

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
    case = CASES.get(path) or Case(dict.fromkeys(route.example, values))
    value = data.draw(case.bodies)
    body = data.draw(mutated(json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()))
    try:
        decoded = route.decode(call, body)
    except RequestError as error:
        said = bytes(call.error_shape(error).body).decode()
        assert [text for text in texts_in(value) if text not in case.names and is_echoed(text, said)] == []
    else:
        for one in decoded if isinstance(decoded, list) else [decoded]:  # a list is of /vertex
            chosen = one.chosen if path == "/vertex" else one
            request = chosen.request if isinstance(chosen, Chosen) else chosen
            if not path.startswith("/api/"):  # Ollama's clients may ask for nothing
                check(request.work if path == "/pooling" else request)


def check(request: object) -> None:
    """There is something to do."""
    if isinstance(request, EmbedRequest | ClassifyRequest | ClassifyTokensRequest):
        assert request.texts or request.token_ids
        assert request.num_items >= 1
    elif isinstance(request, RerankRequest):
        assert request.queries
        assert all(request.queries)
        assert request.documents
        assert all(request.documents)
    elif isinstance(request, TokenizeRequest):
        assert request.texts
        assert all(request.texts)
    else:
        assert isinstance(request, DecodeRequest)
        assert request.token_ids


def test_cases_are_of_routes() -> None:
    assert CASES.keys() <= BY_PATH.keys()


def test_an_echo_would_be_seen() -> None:
    assert is_echoed("QXZJ0123456789", 'input[0]: "XZJ01234" is not valid')
    assert not is_echoed("QXZJ0123456789", "input[0]: expected `str`, got `int`")
