"""Server reflection, by which tools such as grpcurl learn the methods and messages. It needs a key where others do."""

from collections.abc import AsyncIterable, AsyncIterator

from grpc.aio import ServicerContext
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from server.dialects.tei_grpc import tei_pb2
from server.grpc.rpc import headers_of
from server.grpc.statuses import refusal
from server.http.auth import Keys
from server.requests.errors import Unauthorized

_PATH = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
_FILES = (tei_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR)


class Reflection(ReflectionServicer):
    """Describes every service of this port."""

    def __init__(self, keys: Keys) -> None:
        services = [service.full_name for file in _FILES for service in file.services_by_name.values()]
        super().__init__([*services, reflection.SERVICE_NAME])
        self._keys = keys

    async def ServerReflectionInfo(
        self, requests: AsyncIterable[ServerReflectionRequest], context: ServicerContext
    ) -> AsyncIterator[ServerReflectionResponse]:
        """As the library answers it."""
        try:
            self._keys.check("POST", _PATH, headers_of(context))
        except Unauthorized as error:
            await refusal(error, "").send(context)
        async for answer in super().ServerReflectionInfo(requests, context):
            yield answer
