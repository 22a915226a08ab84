"""A frontend's gRPC port in one process: the edge with stand-ins for the pool and the managers, and a client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from server.features.grpc import tei_pb2
from server.features.grpc.server import GrpcServer
from server.requests.work import Trace
from server.settings.api_keys import ApiKey, digest
from server.supervisor.listeners import host_and_port, reserve
from tests.server.edge import Edge
from tests.server_e2e.running import PATIENCE

MAX_BYTES = 10_000
TEAM = (ApiKey("team", digest(b"sesame")),)
BOTH = [ApiKey("a", digest(b"key-a")), ApiKey("b", digest(b"key-b"))]


@dataclass
class Port:
    """The port, a channel to it, and what was reported."""

    edge: Edge
    server: GrpcServer
    channel: grpc.aio.Channel
    traces: list[Trace] = field(default_factory=list)
    reported: asyncio.Event = field(default_factory=asyncio.Event)

    def finished(self, trace: Trace) -> None:
        self.traces.append(trace)
        self.reported.set()

    async def wait_reported(self, number: int) -> None:
        """Until so many requests have ended."""
        while len(self.traces) < number:
            self.reported.clear()
            await asyncio.wait_for(self.reported.wait(), PATIENCE)

    async def ask(self, path: str, message: Any, **how: Any) -> Any:
        """The answer to one message. Raises grpc.aio.AioRpcError."""
        return await self.call(path, message, **how)

    def call(self, path: str, message: Any, *, timeout: float = PATIENCE, **how: Any) -> grpc.aio.UnaryUnaryCall:
        answer = answer_type(path)
        method = self.channel.unary_unary(path, type(message).SerializeToString, answer.FromString)
        return method(message, timeout=timeout, **how)

    def stream(self, path: str, messages: Any = None, *, timeout: float = PATIENCE, **how: Any) -> Any:
        """A stream of messages, and of answers to each."""
        method = self.channel.stream_stream(path, _bytes, answer_type(path).FromString)
        return method(messages, timeout=timeout, **how)

    async def collect(self, path: str, messages: Any, **how: Any) -> Any:
        """One answer to a stream of messages."""
        return await self.channel.stream_unary(path, _bytes, answer_type(path).FromString)(messages, **how)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def answer_type(path: str) -> Any:
    """The class of a method's answers."""
    _, service, name = path.split("/")
    method = tei_pb2.DESCRIPTOR.services_by_name[service.removeprefix("tei.v1.")].methods_by_name[name]
    return getattr(tei_pb2, method.output_type.name)


@contextlib.asynccontextmanager
async def serving(
    edge: Edge | None = None, *, keys: Sequence[ApiKey] = (), max_concurrent_requests: int = 100, **shared: Any
) -> AsyncIterator[Port]:
    edge = edge or Edge(max_bytes=MAX_BYTES, keys=keys)
    reports: list[Callable[[Trace], None]] = []
    of_requests = replace(edge.shared, finished=lambda trace: reports[0](trace), **shared)
    with reserve("127.0.0.1", 0, "--grpc-port") as reserved:
        address = host_and_port(reserved)
        server = GrpcServer(
            address,
            of_requests,
            payload_limit=MAX_BYTES,
            max_concurrent_requests=max_concurrent_requests,
            max_connections=10,
        )
        await server.start()
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                port = Port(edge, server, channel)
                reports.append(port.finished)
                yield port
        finally:
            await server.stop(0)
            await asyncio.sleep(0)


async def nothing() -> AsyncIterator[Any]:
    """What a client that waits sends. gRPC's library may tell one that sends while it is refused INTERNAL instead."""
    await asyncio.Event().wait()
    yield b""


async def error_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of an RPC that fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("it did not fail")
