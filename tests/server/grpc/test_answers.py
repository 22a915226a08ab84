"""Each method gives what its route over HTTP gives, alone and in a stream."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import numpy as np
import pytest

from server.features.grpc import tei_pb2
from tests.server.edge import Edge, call, state_with_everything
from tests.server.grpc.serving import MAX_BYTES, Port, serving

TEXT = "a text"


def everything() -> Edge:
    edge = Edge(max_bytes=MAX_BYTES, loaded=state_with_everything())
    edge.managers.num_labels = 3
    edge.managers.rows = np.array([[0.25, 1, 0.5, -1, 0, 2, 3, -0.5]], np.float32)
    return edge


def as_dicts(items: Iterable[Any], *names: str) -> list[dict[str, Any]]:
    """Of messages, those fields that they have."""
    return [
        {name: getattr(item, name) for name in names if name not in ("start", "stop") or item.HasField(name)}
        for item in items
    ]


Read = Callable[[Any], Any]
# method, message, route, body, and the answer as the route has it
SINGLE: list[tuple[str, Any, str, dict[str, Any], Read]] = [
    (
        "Embed/Embed",
        tei_pb2.EmbedRequest(inputs=TEXT, dimensions=3),
        "/embed",
        {"inputs": TEXT, "dimensions": 3},
        lambda answer: [pytest.approx(list(answer.embeddings), rel=1e-7)],
    ),
    (
        "Embed/EmbedSparse",
        tei_pb2.EmbedSparseRequest(inputs=TEXT),
        "/embed_sparse",
        {"inputs": TEXT},
        lambda answer: [as_dicts(answer.sparse_embeddings, "index", "value")],
    ),
    (
        "Embed/EmbedAll",
        tei_pb2.EmbedAllRequest(inputs=TEXT),
        "/embed_all",
        {"inputs": TEXT},
        lambda answer: [[list(row.embeddings) for row in answer.token_embeddings]],
    ),
    (
        "Predict/Predict",
        tei_pb2.PredictRequest(inputs=TEXT, raw_scores=True),
        "/predict",
        {"inputs": TEXT, "raw_scores": True},
        lambda answer: as_dicts(answer.predictions, "score", "label"),
    ),
    (
        "Predict/PredictPair",
        tei_pb2.PredictPairRequest(inputs=[TEXT, "more"], raw_scores=True),
        "/predict",
        {"inputs": [TEXT, "more"], "raw_scores": True},
        lambda answer: as_dicts(answer.predictions, "score", "label"),
    ),
    (
        "Tokenize/Tokenize",
        tei_pb2.EncodeRequest(inputs=TEXT, add_special_tokens=True),
        "/tokenize",
        {"inputs": TEXT},
        lambda answer: [as_dicts(answer.tokens, "id", "text", "special", "start", "stop")],
    ),
    (
        "Tokenize/Decode",
        tei_pb2.DecodeRequest(ids=[5, 6], skip_special_tokens=True),
        "/decode",
        {"ids": [5, 6]},
        lambda answer: [answer.text],
    ),
]
CASES = pytest.mark.parametrize(("name", "message", "route", "body", "read"), SINGLE, ids=[case[0] for case in SINGLE])


async def by_http(edge: Edge, route: str, body: dict[str, Any]) -> Any:
    called = await call(edge.app, "POST", route, json.dumps(body).encode())
    assert called.status == 200, called.body
    return json.loads(called.body)


@pytest.mark.holds("gRPC")
@CASES
async def test_as_over_http_alone_and_in_a_stream(
    name: str, message: Any, route: str, body: dict[str, Any], read: Read
) -> None:
    async with serving(everything()) as port:
        expected = await by_http(port.edge, route, body)
        one = await port.ask(f"/tei.v1.{name}", message)
        assert read(one) == expected
        each = [read(answer) async for answer in port.stream(f"/tei.v1.{name}Stream", iter([message] * 3))]
        assert each == [expected] * 3
        assert [(trace.route, trace.status) for trace in port.traces] == [
            (f"/tei.v1.{name}", 200),
            *[(f"/tei.v1.{name}Stream", 200)] * 3,
        ]
        if "metadata" in one.DESCRIPTOR.fields_by_name:
            assert one.metadata.compute_tokens == port.traces[0].num_tokens > 0
            assert one.metadata.total_time_ns >= one.metadata.tokenization_time_ns > 0


@pytest.mark.holds("gRPC")
async def test_ranks_of_one_request_and_of_a_stream() -> None:
    async def messages() -> AsyncIterator[Any]:
        for index, text in enumerate(("a", "bcd", "ef")):
            yield tei_pb2.RerankStreamRequest(query="q", text=text, return_text=index == 0)

    async with serving(Edge(max_bytes=MAX_BYTES)) as port:
        body: dict[str, Any] = {"query": "q", "texts": ["a", "bcd", "ef"], "return_text": True}
        expected = await by_http(port.edge, "/rerank", body)
        one = await port.ask("/tei.v1.Rerank/Rerank", tei_pb2.RerankRequest(**body))
        streamed = await port.collect("/tei.v1.Rerank/RerankStream", messages())
        for answer in (one, streamed):
            assert as_dicts(answer.ranks, "index", "score", "text") == expected


@pytest.mark.holds("gRPC")
async def test_info_is_that_of_the_route() -> None:
    async with serving() as port:
        answer = await port.ask("/tei.v1.Info/Info", tei_pb2.InfoRequest())
        called = await call(port.edge.app, "GET", "/info")
        known = json.loads(called.body)
        assert answer.model_type == tei_pb2.MODEL_TYPE_EMBEDDING
        for name in ("model_id", "version", "model_dtype", "max_client_batch_size", "max_input_length"):
            assert getattr(answer, name) == known[name]
        assert not answer.HasField("max_batch_requests")


async def test_headers_of_the_answer() -> None:
    """TEI's, and ours for what was cut and for the log."""

    async def run(port: Port) -> None:
        message = tei_pb2.EmbedRequest(inputs="x" * 20, truncate=True)
        asked = port.call("/tei.v1.Embed/Embed", message, metadata=(("x-request-id", "mine"),))
        headers = dict(await asked.initial_metadata())
        assert headers["x-embedline-truncated-inputs"] == "1"
        assert headers["x-compute-characters"] == "20"
        assert headers["x-request-id"] == "mine"
        assert len((await asked).embeddings) == 8

    async with serving() as port:
        await run(port)
