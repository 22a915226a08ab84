"""A whole server with --grpc-port, and a real client."""

import contextlib
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from server.features.grpc import tei_pb2
from tests.server.certificates import Pair, make_pair
from tests.server_e2e.expected import FAKE, rows_of
from tests.server_e2e.running import PATIENCE, Server

SESAME = (("authorization", "Bearer sesame"),)
TEXTS = ["hello", "a longer text", "short"]
SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


def address_of(server: Server) -> str:
    match, _ = server.log.wait_for(r"over gRPC on (\S+)$")
    return match[1]


@contextlib.contextmanager
def channel_to(address: str, **how: Any) -> Iterator[grpc.Channel]:
    """A connection of its own; others to the same address would share one."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)], **how) as channel:
        yield channel


def method(channel: grpc.Channel, path: str, *, is_stream: bool = False) -> Any:
    _, service, name = path.split("/")
    found = tei_pb2.DESCRIPTOR.services_by_name[service.removeprefix("tei.v1.")].methods_by_name[name]
    asked, answered = (getattr(tei_pb2, each.name) for each in (found.input_type, found.output_type))
    make = channel.stream_stream if is_stream else channel.unary_unary
    return make(path, asked.SerializeToString, answered.FromString)


@pytest.mark.full
@pytest.mark.holds("gRPC", "API keys")
def test_rows_are_those_of_http_from_every_frontend(tmp_path: Path) -> None:
    server = Server(
        *FAKE, "--grpc-port", "0", "--frontends", "2", "--api-key", "sesame", "--drain-delay", "0", folder=tmp_path
    )
    try:
        address = address_of(server)
        server.wait_ready()
        for _ in range(8):  # the kernel chooses a frontend for each connection
            with channel_to(address) as channel:
                answer = method(channel, "/tei.v1.Embed/Embed")(
                    tei_pb2.EmbedRequest(inputs=TEXTS[0], normalize=False), metadata=SESAME, timeout=PATIENCE
                )
                np.testing.assert_array_equal(np.float32(answer.embeddings), rows_of(TEXTS[:1])[0])
        with channel_to(address) as channel:
            check_others(server, channel)
            watched = HealthStub(channel).Watch(HealthCheckRequest(), timeout=PATIENCE)
            assert next(watched).status == SERVING
            assert server.stop() == 0
            assert [each.status for each in watched] in ([NOT_SERVING], [])
        page = [line for line in server.log.lines if " ERROR " in line or "Traceback" in line]
        assert page == []
    finally:
        server.close()


def check_others(server: Server, channel: grpc.Channel) -> None:
    """The other methods that the fake engine has rows for, and the statuses of what is refused."""
    sent = (tei_pb2.EmbedRequest(inputs=text, normalize=False) for text in TEXTS)
    streamed = method(channel, "/tei.v1.Embed/EmbedStream", is_stream=True)(sent, metadata=SESAME, timeout=PATIENCE)
    np.testing.assert_array_equal(np.array([answer.embeddings for answer in streamed], np.float32), rows_of(TEXTS))

    def ask(path: str, message: Any, metadata: Any = SESAME) -> Any:
        return method(channel, path)(message, metadata=metadata, timeout=PATIENCE)

    def post(route: str, **body: Any) -> Any:
        return server.request("POST", route, body, authorization="Bearer sesame").json()

    tokens = ask("/tei.v1.Tokenize/Tokenize", tei_pb2.EncodeRequest(inputs=TEXTS[1], add_special_tokens=True)).tokens
    assert [token.id for token in tokens] == [token["id"] for token in post("/tokenize", inputs=TEXTS[1])[0]]
    decoded = ask("/tei.v1.Tokenize/Decode", tei_pb2.DecodeRequest(ids=[token.id for token in tokens]))
    assert [decoded.text] == post("/decode", ids=[token.id for token in tokens], skip_special_tokens=False)
    ranks = ask("/tei.v1.Rerank/Rerank", tei_pb2.RerankRequest(query="hello", texts=TEXTS)).ranks
    assert [rank.index for rank in ranks] == [rank["index"] for rank in post("/rerank", query="hello", texts=TEXTS)]
    rows = ask("/tei.v1.Embed/EmbedAll", tei_pb2.EmbedAllRequest(inputs=TEXTS[0])).token_embeddings
    np.testing.assert_array_equal(
        np.array([row.embeddings for row in rows], np.float32),
        np.array(post("/embed_all", inputs=TEXTS[0])[0], np.float32),
    )
    assert ask("/tei.v1.Info/Info", tei_pb2.InfoRequest()).max_input_length == 256

    long, hello = tei_pb2.EmbedRequest(inputs="word " * 1000), tei_pb2.EmbedRequest(inputs="hello")
    for message, metadata, code in (
        (long, SESAME, grpc.StatusCode.INVALID_ARGUMENT),
        (hello, (), grpc.StatusCode.UNAUTHENTICATED),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            ask("/tei.v1.Embed/Embed", message, metadata)
        assert refused.value.code() is code
    counted = re.compile(r'^embedline_requests_total{.*code="200",.*route="/tei\.v1\.Embed/Embed"} 8\.0$', re.MULTILINE)
    while not counted.search(server.request("GET", "/metrics", authorization="Bearer sesame").body.decode()):
        pass  # frontends send what they have counted once a second


@pytest.mark.full
@pytest.mark.holds("gRPC", "TLS")
def test_it_has_the_certificate_of_the_http_port_also_a_new_one(tmp_path: Path) -> None:
    """With its key in the same file."""
    old, new = make_pair(tmp_path / "old"), make_pair(tmp_path / "new")
    both = tmp_path / "both.pem"
    both.write_bytes(old.certfile.read_bytes() + old.keyfile.read_bytes())
    server = Server(*FAKE, "--grpc-port", "0", "--ssl-certfile", str(both), folder=tmp_path)
    try:
        address = address_of(server).replace("127.0.0.1", "localhost")
        server.log.wait_for(r"INFO supervisor: ready$")
        assert embed_with_tls(address, old)
        both.write_bytes(new.certfile.read_bytes() + new.keyfile.read_bytes())
        assert embed_with_tls(address, new)
    finally:
        server.close()


def embed_with_tls(address: str, trusted: Pair) -> Any:
    """By a new connection, tried until it is made."""
    credentials = grpc.ssl_channel_credentials(trusted.certfile.read_bytes())
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(address, credentials, options=options) as channel:
        message = tei_pb2.EmbedRequest(inputs="hello")
        return method(channel, "/tei.v1.Embed/Embed")(message, timeout=PATIENCE, wait_for_ready=True).embeddings


@pytest.mark.full
@pytest.mark.holds("gRPC", "Shutdown", "When a process dies")
def test_a_frontend_that_dies_comes_back_and_a_drain_is_told_first(tmp_path: Path) -> None:
    """After SIGTERM health changes at once; calls are answered until --drain-delay is over."""
    server = Server(*FAKE, "--grpc-port", "0", "--drain-delay", "3", folder=tmp_path)
    message = tei_pb2.EmbedRequest(inputs="hello")
    try:
        address = address_of(server)
        ready = server.wait_ready()
        server.kill("frontend 0")
        server.wait_ready(after=ready)
        with channel_to(address) as channel:
            embed = method(channel, "/tei.v1.Embed/Embed")
            assert embed(message, timeout=PATIENCE, wait_for_ready=True).embeddings
            watched = HealthStub(channel).Watch(HealthCheckRequest(), timeout=PATIENCE)
            assert next(watched).status == SERVING
            server.process.send_signal(signal.SIGTERM)
            assert next(watched).status == NOT_SERVING
            assert embed(message, timeout=PATIENCE).embeddings
            assert list(watched) == []
        assert server.process.wait(PATIENCE) == 0
    finally:
        server.close()


@pytest.mark.full
@pytest.mark.holds("gRPC", "Taking over")
def test_a_successor_serves_the_same_port(tmp_path: Path) -> None:
    """Clients of a channel wait until it is connected again. No call fails, but for one that crosses the library's
    GOAWAY: the server has not seen it, and the client sends it again."""
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as free_too:
        port, grpc_port = (str(each.getsockname()[1]) for each in (free, free_too))
    flags = (*FAKE, "--port", port, "--grpc-port", grpc_port)
    first = Server(*flags, folder=tmp_path)
    second: Server | None = None
    try:
        first.wait_ready()
        with channel_to(f"127.0.0.1:{grpc_port}") as channel:
            embed = method(channel, "/tei.v1.Embed/Embed")
            second = Server(*flags, "--takeover", folder=tmp_path)
            message = tei_pb2.EmbedRequest(inputs="hello")
            crossed: list[grpc.StatusCode] = []
            while first.process.poll() is None:
                try:
                    assert embed(message, timeout=PATIENCE, wait_for_ready=True).embeddings
                except grpc.RpcError as error:
                    crossed.append(error.code())
            assert crossed in ([], [grpc.StatusCode.CANCELLED], [grpc.StatusCode.UNAVAILABLE])
            assert first.process.returncode == 0
            second.wait_ready()
            assert embed(message, timeout=PATIENCE, wait_for_ready=True).embeddings
        assert second.stop() == 0
    finally:
        first.close()
        if second is not None:
            second.close()
