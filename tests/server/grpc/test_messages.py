"""Messages to requests, and results to messages."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.types import OutputKind
from server.features.grpc import tei_pb2
from server.features.grpc.methods import METHODS
from server.requests.errors import EmptyInput, InvalidRequest, MalformedBody, RequestError
from server.requests.rerank import Ranked
from server.requests.work import Embedded
from tests.server.edge import new_call, one_model
from tokenizer_pool.messages import Truncation
from tokenizer_pool.tasks import Token

BY_NAME = {method.name: method for method in METHODS}
RERANK, STREAM = BY_NAME["Rerank/Rerank"], BY_NAME["Rerank/RerankStream"]
LEFT = tei_pb2.TRUNCATION_DIRECTION_LEFT


def embedded(rows: Any) -> Embedded:
    values = np.array(rows, np.float32)
    return Embedded(values, len(values), np.zeros(len(values), np.uint8))


def test_a_text_with_all_fields() -> None:
    models = one_model(facts={"prompts": {"query": "Q: "}})
    message = tei_pb2.EmbedRequest(
        inputs="hi", truncate=True, truncation_direction=LEFT, normalize=False, prompt_name="query", dimensions=3
    )
    request = BY_NAME["Embed/Embed"].decode(new_call(models=models), message)

    assert (request.texts, request.prompt, request.is_single) == (["hi"], "Q: ", True)
    assert (request.truncation, request.normalize, request.dimensions) == (Truncation.LEFT, False, 3)


def test_what_is_not_given_is_as_teis() -> None:
    """Rows are scaled to length 1, and no text is cut, whatever --auto-truncate says."""
    request = BY_NAME["Embed/Embed"].decode(new_call(), tei_pb2.EmbedRequest(inputs="hi"))
    assert (request.normalize, request.dimensions, request.truncation) == (True, None, Truncation.NONE)


@pytest.mark.parametrize("model", [{}, {"outputs": OutputKind.MULTI_VECTOR}], ids=["tokens", "late interaction"])
def test_rows_of_tokens_are_those_that_the_model_gives(model: dict[str, Any]) -> None:
    request = BY_NAME["Embed/EmbedAll"].decode(
        new_call(models=one_model(**model)), tei_pb2.EmbedAllRequest(inputs="hi")
    )
    assert request.outputs is model.get("outputs", OutputKind.TOKENS)


def test_pairs_and_streams_of_pairs() -> None:
    pair = BY_NAME["Predict/PredictPair"].decode(
        new_call(), tei_pb2.PredictPairRequest(inputs=["a", ""], raw_scores=True)
    )
    assert (list(pair.texts or ()), list(pair.pair_texts), pair.raw_scores) == (["a"], [""], True)

    messages = [tei_pb2.RerankStreamRequest(query=query, text="t", return_text=True) for query in "qqp"]
    several = STREAM.decode(new_call(), messages)
    assert (several.queries, several.documents, several.has_texts) == (["q", "q", "p"], ["t"] * 3, True)
    assert STREAM.decode(new_call(), messages[:2]).queries == ["q"]


WRONG: list[tuple[str, Any, type[RequestError], str]] = [
    ("Embed/Embed", tei_pb2.EmbedRequest(), EmptyInput, "inputs"),
    ("Embed/Embed", tei_pb2.EmbedRequest(inputs="a", dimensions=0), InvalidRequest, "dimensions"),
    ("Embed/Embed", tei_pb2.EmbedRequest(inputs="a", dimensions=9), InvalidRequest, "dimensions"),
    ("Embed/Embed", tei_pb2.EmbedRequest(inputs="a", prompt_name="no"), InvalidRequest, "prompt_name"),
    (
        "Embed/EmbedSparse",
        tei_pb2.EmbedSparseRequest(inputs="a", truncation_direction=2),  # type: ignore[arg-type]  # a client may
        InvalidRequest,
        "truncation_direction",
    ),
    ("Embed/EmbedAll", tei_pb2.EmbedAllRequest(), EmptyInput, "inputs"),
    ("Predict/Predict", tei_pb2.PredictRequest(), EmptyInput, "inputs"),
    ("Predict/PredictPair", tei_pb2.PredictPairRequest(inputs=["a"]), InvalidRequest, "inputs"),
    ("Predict/PredictPair", tei_pb2.PredictPairRequest(inputs=["", ""]), EmptyInput, "inputs"),
    ("Rerank/Rerank", tei_pb2.RerankRequest(query="a"), EmptyInput, "texts"),
    ("Rerank/Rerank", tei_pb2.RerankRequest(texts=["a", ""]), EmptyInput, "query"),
    ("Rerank/Rerank", tei_pb2.RerankRequest(query="a", texts="abcde"), InvalidRequest, "texts"),
    (
        "Rerank/RerankStream",
        [tei_pb2.RerankStreamRequest(query="a", truncate=each) for each in (True, False)],
        InvalidRequest,
        "truncate",
    ),
    ("Rerank/RerankStream", [tei_pb2.RerankStreamRequest()], EmptyInput, "query"),
    ("Tokenize/Tokenize", tei_pb2.EncodeRequest(), EmptyInput, "inputs"),
    ("Tokenize/Decode", tei_pb2.DecodeRequest(), EmptyInput, "ids"),
    ("Tokenize/Decode", tei_pb2.DecodeRequest(ids=range((1 << 22) + 1)), InvalidRequest, "ids"),
]


@pytest.mark.parametrize(
    ("name", "message", "error", "param"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_wrong_is_named(name: str, message: Any, error: type[RequestError], param: str) -> None:
    with pytest.raises(error) as refused:
        BY_NAME[name].decode(new_call(), message)
    assert (type(refused.value), refused.value.param) == (error, param)


def test_rows_are_written_as_protobuf_writes_them() -> None:
    """Also those that are longer than a byte can say."""
    call = new_call()
    call.trace.num_tokens, call.trace.num_characters = 3, 200
    rows = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    big_endian = replace(embedded(rows), rows=rows[:, ::-1].astype(">f4"))  # any layout will do

    row = tei_pb2.EmbedResponse.FromString(asyncio.run(BY_NAME["Embed/Embed"].encode(call, None, big_endian)))
    assert row.embeddings == rows[0, ::-1].tolist()
    assert (row.metadata.compute_tokens, row.metadata.compute_chars) == (3, 200)
    assert row.metadata.total_time_ns > 0

    every = tei_pb2.EmbedAllResponse.FromString(asyncio.run(BY_NAME["Embed/EmbedAll"].encode(call, None, big_endian)))
    assert [list(each.embeddings) for each in every.token_embeddings] == rows[:, ::-1].tolist()
    assert every.metadata.compute_tokens == 3


def test_entries_are_any_and_texts_of_ranks_are_left_out_and_tokens_may_have_no_place() -> None:
    sparse = asyncio.run(BY_NAME["Embed/EmbedSparse"].encode(new_call(), None, embedded([[7, 0.5], [90_000, 2]])))
    entries = tei_pb2.EmbedSparseResponse.FromString(sparse).sparse_embeddings
    assert [(entry.index, entry.value) for entry in entries] == [(7, 0.5), (90_000, 2)]

    asked = RERANK.decode(new_call(), tei_pb2.RerankRequest(query="q", texts=["a", "b"]))
    ranked = Ranked(np.array([0.25, 0.5], np.float32), 4, np.zeros(2, np.uint8))
    ranks = tei_pb2.RerankResponse.FromString(asyncio.run(RERANK.encode(new_call(), asked, ranked))).ranks
    assert [(each.index, each.HasField("text"), each.score) for each in ranks] == [(1, False, 0.5), (0, False, 0.25)]

    found = [[Token(101, "[CLS]", True, None, None), Token(7, "a", False, 0, 1)]]
    tokens = asyncio.run(BY_NAME["Tokenize/Tokenize"].encode(new_call(), None, found))
    written = tei_pb2.EncodeResponse.FromString(tokens).tokens
    assert [(token.id, token.text, token.special) for token in written] == [(101, "[CLS]", True), (7, "a", False)]
    assert [(token.HasField("start"), token.start, token.stop) for token in written] == [(False, 0, 0), (True, 0, 1)]


@pytest.mark.parametrize("rest", [b"", b"\xfa\x01\x00" * 40_000], ids=["texts", "texts and unknown fields"])
def test_far_too_many_texts_are_refused_before_each_is_one(rest: bytes) -> None:
    with pytest.raises(InvalidRequest, match="--max-client-batch-size"):
        RERANK.parsed(b"\x0a\x01a" + b"\x12\x00" * 40_000 + rest, 2048)


def test_fields_of_every_wire_type_are_passed() -> None:
    text = "a" * 100_000
    fields = b"\x58\xff\xff\x03" + b"\x61" + b"8" * 8 + b"\x6d" + b"4" * 4 + b"\x73\x74"  # 11 to 14, unknown
    message = tei_pb2.RerankRequest(query="q", texts=[text, "b"], raw_scores=True)
    assert list(RERANK.parsed(fields * 10 + message.SerializeToString(), 8).texts) == [text, "b"]


@pytest.mark.parametrize("end", [b"\x12", b"\x12\xff\xff\xff\xff\x0f", b"\x17", b"\xff" * 12, b"\x6dab"])
def test_what_is_no_message_is_left_to_the_parser(end: bytes) -> None:
    with pytest.raises(MalformedBody):
        RERANK.parsed(tei_pb2.RerankRequest(query="q" * 70_000).SerializeToString() + end, 2048)
