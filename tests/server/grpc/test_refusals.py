"""What is refused over gRPC: the status, what it says, and that it is reported as a request over HTTP is."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from batch_manager import messages as batching
from batch_manager.messages import RequestRefused
from server.features.grpc import calls, server, tei_pb2
from server.features.grpc.calls import CODES
from server.features.grpc.method import Method
from server.requests import errors
from server.requests.models import ModelsState
from tests.server.edge import Edge, ready_state
from tests.server.grpc.serving import BOTH, MAX_BYTES, TEAM, error_of, nothing, serving
from tests.server_e2e.running import PATIENCE
from tokenizer_pool.messages import TextRefusal, TextRefused

Code = grpc.StatusCode
EMBED = "/tei.v1.Embed/Embed"
REFLECTION = server._REFLECTION_PATH
HELLO = tei_pb2.EmbedRequest(inputs="hello")
# What only heads, paths and bodies of HTTP can be.
ONLY_HTTPS = {
    *(errors.Forbidden, errors.NoSuchRoute, errors.WrongMethod, errors.UnsupportedMedia, errors.HeadTooLarge),
    *(errors.NotFound, errors.Conflict),
}


def test_every_error_has_a_status() -> None:
    assert CODES.keys() == errors.ERRORS.keys() - ONLY_HTTPS


@pytest.mark.holds("gRPC", "API keys")
@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)], ids=["no key", "a wrong key"])
async def test_a_key_is_needed_before_anything_is_read(metadata: Any) -> None:
    async with serving(keys=TEAM) as port:
        code, _ = await error_of(port.ask(EMBED, tei_pb2.EmbedRequest(), metadata=metadata))
        assert code is Code.UNAUTHENTICATED
        assert await error_of(port.stream(f"{EMBED}Stream", nothing(), metadata=metadata).read()) == (
            code,
            "send a valid API key: authorization: Bearer …",
        )
        assert [(trace.status, trace.reason) for trace in port.traces] == [(401, "unauthorized")] * 2

        right = (("authorization", "Bearer sesame"),)
        assert (await port.ask(EMBED, HELLO, metadata=right)).embeddings
        assert port.traces[-1].key == "team"


TOO_LONG = TextRefused(TextRefusal.TOO_LONG, 0, max_tokens=16)
NO_ENGINE = RequestRefused(batching.RequestRefusal.NO_ENGINE, retry_after=2.0)
NON_FINITE = RequestRefused(batching.RequestRefusal.NON_FINITE, index=0)
# what the tokenizer or the manager raises, the code, what is said, and the status that HTTP has
CASES: list[tuple[Exception | None, grpc.StatusCode, str, int]] = [
    (None, Code.INVALID_ARGUMENT, "`inputs` cannot be empty", 400),
    (TOO_LONG, Code.INVALID_ARGUMENT, "inputs is longer than 16 tokens and truncation is off", 400),
    (TextRefused(TextRefusal.FAILED, 0), Code.FAILED_PRECONDITION, "inputs can't be tokenized", 400),
    (NO_ENGINE, Code.UNAVAILABLE, "no engine is ready", 503),
    (NON_FINITE, Code.FAILED_PRECONDITION, "the model gives numbers that are not finite for inputs", 500),
]


@pytest.mark.holds("gRPC")
@pytest.mark.parametrize(("error", "code", "text", "status"), CASES)
async def test_errors_have_teis_codes(error: Exception | None, code: grpc.StatusCode, text: str, status: int) -> None:
    async with serving() as port:
        if isinstance(error, TextRefused):
            port.edge.tokenizers.error = error
        else:
            port.edge.managers.error = error
        call = port.call(EMBED, HELLO if error else tei_pb2.EmbedRequest())
        assert await error_of(call) == (code, text)
        trailers = dict(await call.trailing_metadata())
        assert trailers["x-request-id"] == port.traces[0].request_id
        assert trailers.get("grpc-retry-pushback-ms") == ("2000" if status == 503 else None)
        assert [trace.status for trace in port.traces] == [status]


async def test_what_is_no_message_or_no_task_of_the_model() -> None:
    async with serving() as port:
        raw = port.channel.unary_unary(EMBED)(b"\xff\xff", timeout=PATIENCE)
        code = Code.INVALID_ARGUMENT
        problem = "the message is not of the type tei.v1.EmbedRequest, or a text in it is not UTF-8"
        assert await error_of(raw) == (code, problem)

        unsupported = await error_of(port.ask("/tei.v1.Predict/Predict", tei_pb2.PredictRequest(inputs="a")))
        assert unsupported[0] is Code.FAILED_PRECONDITION
        wrong_class = (("x-embedline-class", "first"),)
        assert (await error_of(port.ask(EMBED, HELLO, metadata=wrong_class)))[0] is code


@pytest.mark.holds("gRPC")
async def test_metadata_name_the_model() -> None:
    edge = Edge(max_bytes=MAX_BYTES)
    state = ModelsState(edge.page, strict_model_name=True)
    state.update(ready_state())
    async with serving(edge, state=state) as port:
        assert (await port.ask(EMBED, HELLO, metadata=(("x-embedline-model", "the-model"),))).embeddings
        code, _ = await error_of(port.ask(EMBED, HELLO, metadata=(("x-embedline-model", "another"),)))
        assert code is Code.NOT_FOUND


@pytest.mark.holds("gRPC")
async def test_a_message_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MESSAGE_SECONDS", 0.05)
    async with serving() as port:
        begun = port.channel.stream_unary(EMBED)(nothing(), timeout=PATIENCE)
        assert await error_of(begun) == (Code.DEADLINE_EXCEEDED, "no message came for 0.05 seconds")
        assert [(trace.status, trace.error) for trace in port.traces] == [(408, "BodyTooSlow")]


async def test_a_message_that_is_too_large_never_comes_in() -> None:
    async with serving() as port:
        code, _ = await error_of(port.ask(EMBED, tei_pb2.EmbedRequest(inputs="x" * (MAX_BYTES + 1))))
        assert code is Code.RESOURCE_EXHAUSTED
        # compressed it would be small
        how = {"compression": grpc.Compression.Gzip}
        code, _ = await error_of(port.ask(EMBED, tei_pb2.EmbedRequest(inputs="x" * (MAX_BYTES + 1)), **how))
        assert code is Code.UNIMPLEMENTED
        assert not port.edge.tokenizers.asked


@pytest.mark.holds("gRPC")
async def test_too_many_open_requests() -> None:
    """As over HTTP, both counted together."""
    edge = Edge(max_bytes=MAX_BYTES, max_requests=1)
    async with serving(edge) as port:
        edge.managers.gate = asyncio.Event()
        first = port.call(EMBED, HELLO)
        first_sent = asyncio.ensure_future(first.initial_metadata())
        await edge.managers.arrivals.get()
        code, message = await error_of(port.ask(EMBED, HELLO))
        assert (code, "--max-concurrent-requests" in message) == (Code.RESOURCE_EXHAUSTED, True)
        edge.managers.gate.set()
        assert (await first).embeddings
        await first_sent
        assert (await port.ask(EMBED, HELLO)).embeddings


@pytest.mark.holds("gRPC")
async def test_a_deadline_reaches_the_batch_manager_and_ends_the_request() -> None:
    edge = Edge(max_bytes=MAX_BYTES)
    async with serving(edge) as port:
        edge.managers.gate = asyncio.Event()
        seconds, num_asked = 0.1, 0
        while not edge.managers.submitted:  # on a busy machine the first may be over on its way
            seconds, num_asked = 2 * seconds, num_asked + 1
            code, _ = await error_of(port.ask(EMBED, HELLO, timeout=seconds))
            assert code is Code.DEADLINE_EXCEEDED
        assert edge.managers.submitted[0].deadline < float("inf")
        await port.wait_reported(num_asked)
        ends = {(trace.status, trace.error) for trace in port.traces}
        assert ends <= {(504, "DeadlineExceeded"), (499, "ClientLeft")}  # the client's clock may be the first

        edge.managers.gate.set()
        await port.ask(EMBED, HELLO, metadata=(("x-embedline-class", "bulk"),))
        assert port.traces[-1].request_class == "bulk"


@pytest.mark.holds("gRPC")
async def test_the_work_of_a_client_that_leaves_is_dropped() -> None:
    edge = Edge(max_bytes=MAX_BYTES)
    async with serving(edge) as port:
        edge.managers.gate = asyncio.Event()
        call = port.call(EMBED, HELLO)
        asking = asyncio.ensure_future(call.code())
        await edge.managers.arrivals.get()
        call.cancel()
        assert await asking is Code.CANCELLED
        await port.wait_reported(1)
        assert [(trace.status, trace.error, trace.stage) for trace in port.traces] == [(499, "ClientLeft", "queue")]
        assert edge.admission.requests.num_open == 0
        assert not edge.page.admitted_tokens.any()


@pytest.mark.holds("gRPC", "Every bound")
@pytest.mark.parametrize("has_keys", [False, True])
async def test_silent_calls_take_nobodys_place(has_keys: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are places: of one message, of several, in streams, and of reflection."""
    keys = BOTH if has_keys else []

    def noting(begin: Callable[[str], None], arrived: "asyncio.Queue[str]") -> Callable[[str], None]:
        def begin_and_note(key: str) -> None:
            begin(key)
            arrived.put_nowait(key)

        return begin_and_note

    edge, arrived = Edge(max_bytes=MAX_BYTES, keys=keys, max_requests=2), asyncio.Queue[str]()
    for places in (edge.admission.requests, edge.admission.streams):
        monkeypatch.setattr(places, "begin", noting(places.begin, arrived))
    async with serving(edge) as port:
        silent = [
            port.channel.stream_stream(path)(nothing(), metadata=(("authorization", "Bearer key-a"),))
            for path in (EMBED, "/tei.v1.Rerank/RerankStream", "/tei.v1.Embed/EmbedStream", REFLECTION)
            for _ in range(4)
        ]
        for _ in silent:
            await arrived.get()
        for key in ("a", "b"):
            answer = await port.ask(EMBED, HELLO, metadata=(("authorization", f"Bearer key-{key}"),))
            assert answer.embeddings
        for call in silent:
            call.cancel()


@pytest.mark.holds("gRPC", "Every bound")
async def test_calls_whose_answers_nobody_reads_refuse_their_own_key_alone() -> None:
    edge = Edge(max_bytes=MAX_BYTES, keys=BOTH, max_requests=2)
    with contextlib.ExitStack() as unread:
        for _ in range(3):
            unread.enter_context(edge.admission.unread.one_of("a"))
        async with serving(edge) as port:
            asked = port.ask(EMBED, HELLO, metadata=(("authorization", "Bearer key-a"),))
            assert (await error_of(asked))[0] is Code.RESOURCE_EXHAUSTED
            assert (await port.ask(EMBED, HELLO, metadata=(("authorization", "Bearer key-b"),))).embeddings


@pytest.mark.holds("gRPC")
async def test_reflection_that_is_asked_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REFLECTION_SECONDS", 0.02)
    async with serving() as port:
        stream = port.channel.stream_stream(REFLECTION)(nothing(), timeout=PATIENCE)
        assert await stream.code() is Code.DEADLINE_EXCEEDED
        assert "no message came" in await stream.details()


class Kept:
    """A message that can be watched."""

    def __init__(self, message: Any) -> None:
        self._message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


@pytest.mark.holds("Every bound")
@pytest.mark.parametrize("path", [EMBED, f"{EMBED}Stream"])
def test_nothing_keeps_a_message_that_is_decoded_or_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny body may be a large message, and the garbage of large objects is collected late."""
    parsed, kept = Method.parsed, list[weakref.ref[Kept]]()

    def watched(method: Method, data: bytes, max_items: int) -> Any:
        message = Kept(parsed(method, data, max_items))
        kept.append(weakref.ref(message))
        return message

    monkeypatch.setattr(Method, "parsed", watched)

    async def run() -> None:
        edge = Edge(max_bytes=MAX_BYTES)
        edge.managers.gate = asyncio.Event()
        async with serving(edge) as port:
            wrong = port.stream(path, iter([tei_pb2.EmbedRequest(inputs="a", dimensions=999)]))
            assert await wrong.code() is Code.INVALID_ARGUMENT
            right = port.stream(path, iter([HELLO]))
            await edge.managers.arrivals.get()
            assert [one() for one in kept] == [None, None]
            edge.managers.gate.set()
            assert (await right.read()).embeddings

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
