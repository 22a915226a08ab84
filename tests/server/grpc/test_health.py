"""Health and reflection: what balancers and tools ask."""

from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from tests.server.edge import Edge, ready_state
from tests.server.grpc.serving import MAX_BYTES, TEAM, error_of, nothing, serving
from tests.server_e2e.running import PATIENCE

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


@pytest.mark.holds("gRPC")
async def test_a_service_is_serving_where_the_model_is_of_use_for_it() -> None:
    """And without a key, for balancers have none."""
    async with serving(keys=TEAM) as port:
        stub = HealthStub(port.channel)

        async def status(service: str) -> Any:
            return (await stub.Check(HealthCheckRequest(service=service), timeout=PATIENCE)).status

        names = ("", "tei.v1.Info", "tei.v1.Embed", "tei.v1.Rerank", "tei.v1.Tokenize", "tei.v1.Predict")
        assert [await status(name) for name in names] == [SERVING] * 5 + [NOT_SERVING]
        unknown = stub.Check(HealthCheckRequest(service="tei.v1.Other"), timeout=PATIENCE)
        assert (await error_of(unknown))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.holds("gRPC", "Readiness")
async def test_who_watches_is_told_of_each_change_until_the_server_stops() -> None:
    edge = Edge(max_bytes=MAX_BYTES, loaded=ready_state(ready=False, reason="no engine is ready"))
    async with serving(edge) as port:
        stub = HealthStub(port.channel)
        watched = stub.Watch(HealthCheckRequest(), timeout=PATIENCE)
        unknown = stub.Watch(HealthCheckRequest(service="other"), timeout=PATIENCE)
        assert (await watched.read()).status == NOT_SERVING
        assert (await unknown.read()).status == SERVICE_UNKNOWN

        edge.state.update(ready_state())
        port.server.state_changed()
        port.server.state_changed()  # says nothing new
        assert (await watched.read()).status == SERVING

        edge.state.update(ready_state(ready=False, reason="the server is stopping"))
        port.server.state_changed()
        assert (await watched.read()).status == NOT_SERVING
        await port.server.stop(PATIENCE)
        assert await watched.read() is grpc.aio.EOF
        assert await unknown.read() is grpc.aio.EOF


@pytest.mark.holds("gRPC")
async def test_reflection_describes_the_services_to_who_has_a_key() -> None:
    async with serving(keys=TEAM) as port:
        stub = ServerReflectionStub(port.channel)
        asked = [ServerReflectionRequest(list_services=""), ServerReflectionRequest(file_by_filename="tei.proto")]
        right = (("authorization", "Bearer sesame"),)
        listed, described = [
            each async for each in stub.ServerReflectionInfo(iter(asked), metadata=right, timeout=PATIENCE)
        ]
        names = {service.name for service in listed.list_services_response.service}
        tei = {f"tei.v1.{name}" for name in ("Info", "Embed", "Predict", "Rerank", "Tokenize")}
        assert names == {*tei, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        assert b"EmbedSparseRequest" in described.file_descriptor_response.file_descriptor_proto[0]
        without = stub.ServerReflectionInfo(nothing(), timeout=PATIENCE)
        assert (await error_of(without.read()))[0] is grpc.StatusCode.UNAUTHENTICATED
