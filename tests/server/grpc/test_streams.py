"""Streams: answers in order, a bounded number at once, an end that says what happened."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from server.features.grpc import calls, tei_pb2
from server.http.body import RequestBodies
from server.requests.limits import SharedSlice
from tests.server.edge import Edge
from tests.server.grpc.serving import BOTH, MAX_BYTES, error_of, nothing, serving
from tests.server_e2e.running import PATIENCE

STREAM = "/tei.v1.Embed/EmbedStream"


def messages(*texts: str) -> list[Any]:
    return [tei_pb2.EmbedRequest(inputs=text, normalize=False) for text in texts]


async def all_of(stream: Any) -> list[Any]:
    return [answer async for answer in stream]


async def sizes(stream: Any) -> list[float]:
    """The fake rows say how long each text was."""
    return [answer.embeddings[0] async for answer in stream]


@pytest.mark.holds("gRPC")
async def test_answers_come_in_order_and_as_bulk() -> None:
    async with serving() as port:
        texts = [("x" * length) for length in (3, 1, 2, 5, 4)] * 20
        assert await sizes(port.stream(STREAM, iter(messages(*texts)))) == [len(text) for text in texts]
        assert {trace.request_class for trace in port.traces} == {"bulk"}
        assert {trace.request_id for trace in port.traces} == {port.traces[0].request_id}
        asked = port.stream(STREAM, iter(messages("a")), metadata=(("x-embedline-class", "interactive"),))
        assert await sizes(asked) == [1]
        assert port.traces[-1].request_class == "interactive"


@pytest.mark.holds("gRPC")
async def test_the_work_of_a_stream_is_counted_for_its_key() -> None:
    async with serving(keys=BOTH) as port:
        asked = port.stream(STREAM, iter(messages("a", "bc")), metadata=(("authorization", "Bearer key-b"),))
        assert await sizes(asked) == [1, 2]
        assert [submission.key for submission in port.edge.managers.submitted] == [1, 1]


@pytest.mark.holds("gRPC")
@pytest.mark.parametrize(
    ("limit", "value", "path", "message"),
    [
        ("MAX_OPEN", 3, STREAM, tei_pb2.EmbedRequest),
        # float32 of 16 tokens with 8 numbers each, twice
        ("TOKEN_ROW_BYTES", 4 * 1024 - 1, "/tei.v1.Embed/EmbedAllStream", tei_pb2.EmbedAllRequest),
    ],
    ids=["messages", "bytes of token rows"],
)
async def test_no_more_messages_are_read_than_may_be_open(
    limit: str, value: int, path: str, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, limit, value)
    edge = Edge(max_bytes=MAX_BYTES)
    edge.managers.gate = asyncio.Event()
    async with serving(edge) as port:
        stream = port.stream(path, iter([message(inputs=text) for text in "abcdefgh"]))
        reading = asyncio.ensure_future(all_of(stream))
        for _ in range(3):
            await edge.managers.arrivals.get()
        await port.ask("/tei.v1.Tokenize/Tokenize", tei_pb2.EncodeRequest(inputs="in between"))
        assert len(edge.managers.submitted) == 3
        edge.managers.gate.set()
        assert len(await reading) == 8


@pytest.mark.holds("gRPC")
async def test_a_wrong_message_ends_the_stream_after_the_answers_before_it() -> None:
    async def more_would_come() -> AsyncIterator[Any]:
        for message in messages("a", "bb", ""):
            yield message
        await asyncio.Event().wait()

    async with serving() as port:
        stream = port.stream(STREAM, more_would_come())
        assert (await stream.read()).embeddings[0] == 1
        assert (await stream.read()).embeddings[0] == 2
        assert await error_of(stream.read()) == (grpc.StatusCode.INVALID_ARGUMENT, "`inputs` cannot be empty")
        assert [trace.status for trace in port.traces] == [200, 200, 400]
        assert port.edge.admission.requests.num_open == 0


@pytest.mark.holds("gRPC")
async def test_a_client_that_leaves_ends_all_its_work() -> None:
    edge = Edge(max_bytes=MAX_BYTES)
    edge.managers.gate = asyncio.Event()
    async with serving(edge) as port:
        stream = port.stream(STREAM, iter(messages("a", "b")))
        reading = asyncio.ensure_future(stream.code())
        for _ in range(2):
            await edge.managers.arrivals.get()
        stream.cancel()
        await reading
        await port.wait_reported(2)
        assert [(trace.status, trace.error) for trace in port.traces] == [(499, "ClientLeft")] * 2
        await port.server.stop(PATIENCE)
        assert edge.admission.requests.num_open == 0
        assert not edge.page.admitted_tokens.any()


@pytest.mark.holds("gRPC")
async def test_when_the_server_stops_what_was_sent_is_answered() -> None:
    """And then the client is told to go elsewhere, though it has more to send."""

    async def endless() -> AsyncIterator[Any]:
        yield messages("a")[0]
        await asyncio.Event().wait()

    edge = Edge(max_bytes=MAX_BYTES)
    edge.managers.gate = asyncio.Event()
    async with serving(edge) as port:
        stream = port.stream(STREAM, endless())
        reading = asyncio.ensure_future(stream.read())
        await edge.managers.arrivals.get()
        edge.state.draining = True
        stopping = asyncio.ensure_future(port.server.stop(PATIENCE))
        edge.managers.gate.set()
        assert (await reading).embeddings[0] == 1
        assert await error_of(stream.read()) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        await stopping


async def test_a_stream_that_begins_while_the_server_stops_is_not_read() -> None:
    async with serving() as port:
        port.server._calls.stop_reading()
        stream = port.stream(STREAM, nothing())
        assert await error_of(stream.read()) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")


async def test_ranks_of_a_stream_that_is_too_long_or_empty() -> None:
    async with serving() as port:
        path = "/tei.v1.Rerank/RerankStream"
        many = [tei_pb2.RerankStreamRequest(query="q", text="t")] * 5
        code, message = await error_of(port.collect(path, iter(many)))
        assert (code, "--max-client-batch-size" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert (await error_of(port.collect(path, iter(()))))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.holds("gRPC", "Every bound")
@pytest.mark.parametrize(
    ("path", "message"),
    [
        (STREAM, tei_pb2.EmbedRequest(inputs="x" * 9000)),
        ("/tei.v1.Rerank/RerankStream", tei_pb2.RerankStreamRequest(query="a", text="x" * 9000)),
    ],
    ids=["answered one by one", "answered together"],
)
async def test_small_messages_of_streams_count_together(path: str, message: Any) -> None:
    bodies = RequestBodies(max_bytes=MAX_BYTES, max_total_bytes=100_000)
    async with serving(max_items=100, bodies=bodies) as port:
        with bodies.held(70_000):  # of another client
            await error_of(all_of(port.stream(path, iter([message] * 20))))  # it may be told something else
    assert "open_payload" in {trace.reason for trace in port.traces}


@pytest.mark.holds("gRPC")
async def test_messages_of_all_streams_share_slices_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = asyncio.Semaphore(2)
    edge = Edge(max_bytes=MAX_BYTES)
    async with serving(edge) as port:
        monkeypatch.setattr(SharedSlice, "end_if_over", lambda _: turn.acquire())
        streams = [port.stream(STREAM, iter(messages("a", "b"))) for _ in range(2)]
        reading = [asyncio.ensure_future(all_of(stream)) for stream in streams]
        for _ in range(2):
            await edge.managers.arrivals.get()
        await port.ask("/tei.v1.Tokenize/Tokenize", tei_pb2.EncodeRequest(inputs="in between"))
        assert len(edge.managers.submitted) == 2
        for _ in range(4):  # two more messages, and two ends
            turn.release()
        assert [len(answers) for answers in await asyncio.gather(*reading)] == [2, 2]
