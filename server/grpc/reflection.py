"""Server reflection, by which tools such as grpcurl learn the methods and messages. It needs a key where others do."""

import asyncio
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
from server.requests.admission.open_requests import OpenRequest, OpenRequests
from server.requests.errors import BodyTooSlow, Overloaded, Unauthorized

_PATH = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
_PAUSE_SECONDS = 30.0  # for the next message: each is answered at once
_FILES = (tei_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR)


class Reflection(ReflectionServicer):
    """Describes every service of this port."""

    def __init__(self, keys: Keys, streams: OpenRequests) -> None:
        services = [service.full_name for file in _FILES for service in file.services_by_name.values()]
        super().__init__([*services, reflection.SERVICE_NAME])
        self._keys = keys
        self._streams = streams

    async def ServerReflectionInfo(
        self, requests: AsyncIterable[ServerReflectionRequest], context: ServicerContext
    ) -> AsyncIterator[ServerReflectionResponse]:
        """As the library answers it."""
        with OpenRequest(self._streams) as opened:
            try:
                opened.let_in(self._keys.check("POST", _PATH, headers_of(context)))
                async for answer in super().ServerReflectionInfo(_in_time(requests), context):
                    yield answer
            except (Unauthorized, Overloaded, BodyTooSlow) as error:
                await refusal(error, "").send(context)


async def _in_time(requests: AsyncIterable[ServerReflectionRequest]) -> AsyncIterator[ServerReflectionRequest]:
    """Raises BodyTooSlow."""
    coming = aiter(requests)
    while True:
        try:
            async with asyncio.timeout(_PAUSE_SECONDS):
                request = await anext(coming, None)
        except TimeoutError:
            raise BodyTooSlow(f"no message came for {_PAUSE_SECONDS:g} seconds") from None
        if request is None:
            return
        yield request
