"""The gRPC server of one frontend, with health, reflection and the certificate of its port.

All frontends listen on the same port, and the kernel shares out the connections. Health is open to everybody, as it is
over HTTP; reflection needs a key where others do.
"""

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Sequence

import grpc
from grpc.aio import Server, ServicerContext
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from engine.types import OutputKind
from server.features.grpc import tei_pb2
from server.features.grpc.calls import Calls, headers_of, refusal
from server.features.grpc.method import Method
from server.features.grpc.methods import METHODS, info_method
from server.frontend.parts import Part, Shared
from server.frontend.start import FeatureStart
from server.http.access import Keys
from server.http.request import SharedByRequests
from server.http.tls import contents, first_of, load
from server.requests.errors import BodyTooSlow, Overloaded, Unauthorized
from server.requests.limits import OpenRequest, OpenRequests
from server.requests.models import ModelsState
from server.settings.files import WatchedFiles, version_of
from server.settings.flag import SettingsError
from wire.child import StartError

MAX_WATCHERS = 64  # of a frontend: they need no key, and each takes an RPC of those that may be open
_ROW_KINDS = OutputKind.POOLED | OutputKind.TOKENS | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
# The rows of which a model must give some for a service to be of use; None = of none. "" is the whole server.
SERVICES: dict[str, OutputKind | None] = {
    "": None,
    "tei.v1.Info": None,
    "tei.v1.Tokenize": None,
    "tei.v1.Embed": _ROW_KINDS,
    "tei.v1.Predict": OutputKind.LOGITS,
    "tei.v1.Rerank": OutputKind.LOGITS | OutputKind.POOLED | OutputKind.MULTI_VECTOR,
}
_REFLECTION_PATH = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
_REFLECTION_SECONDS = 30.0  # for the next message: each is answered at once
_FILES = (tei_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR)
_IDENTITY_ALONE = 1  # of the library's compressions: a compressed message could expand past every limit
_IDLE_MS = 300_000  # after which a connection without RPCs is closed; clients connect again by themselves
_PING_MS = 60_000  # after which a silent client is asked whether it is still there, and
_PONG_MS = 20_000  # how long it has to answer
logger = logging.getLogger("embedline.server")


class GrpcServer(Part):
    """Must be made inside the event loop. Call start, then stop, each once."""

    def __init__(
        self,
        address: str,
        shared: SharedByRequests,
        *,
        payload_limit: int,
        max_concurrent_requests: int,
        max_connections: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """`address` is host:port of a port that other processes of this user may listen on too. Of a
        connection `max_concurrent_requests` are open at once; `Calls` bounds those of each key. Without credentials
        there is no TLS."""
        self._address = address
        self._credentials = credentials
        self._calls = calls = Calls(shared)
        self._health = Health(shared.state)
        self._server: Server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", payload_limit),
                ("grpc.max_send_message_length", -1),  # the requests are limited, and so what they give
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
                ("grpc.max_allowed_incoming_connections", max_connections),
                ("grpc.max_concurrent_streams", max_concurrent_requests),  # further RPCs wait at the client
                ("grpc.http2.bdp_probe", 0),  # or up to 16 MiB of each stream would come before anybody reads them
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.keepalive_time_ms", _PING_MS),
                ("grpc.keepalive_timeout_ms", _PONG_MS),
            )
        )
        add_HealthServicer_to_server(self._health, self._server)
        add_ServerReflectionServicer_to_server(Reflection(shared.keys, shared.admission.streams), self._server)
        self._server.add_generic_rpc_handlers(_handlers(calls, [*METHODS, info_method(shared.state)]))

    async def start(self) -> None:
        """Listen, and begin to accept connections. Raises OSError."""
        try:
            if self._credentials is None:
                self._server.add_insecure_port(self._address)
            else:
                self._server.add_secure_port(self._address, self._credentials)
        except RuntimeError as error:
            raise OSError(f"the gRPC library can't listen on {self._address}") from error
        await self._server.start()

    def state_changed(self) -> None:
        """Tell those who watch health."""
        self._health.state_changed()

    async def stop(self, seconds: float) -> None:
        """Let nobody in, and tell clients to go elsewhere. Open RPCs have so long to finish; streams are read no
        further."""
        self._health.end()
        self._calls.stop_reading()
        await self._server.stop(seconds)


def _handlers(calls: Calls, methods: list[Method]) -> list[grpc.GenericRpcHandler]:
    by_service: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    for method in methods:
        handler = grpc.stream_stream_rpc_method_handler(calls.handler(method))
        _, service, name = method.path.split("/")
        by_service.setdefault(service, {})[name] = handler
    return [grpc.method_handlers_generic_handler(service, found) for service, found in by_service.items()]


class Health(HealthServicer):
    """grpc.health.v1: SERVING where a request sent now would be computed, by the supervisor's newest STATE.

    Watchers are told of each change.
    """

    def __init__(self, state: ModelsState) -> None:
        self._state = state
        self._next_change = asyncio.Event()
        self._has_ended = False
        self._num_watchers = 0

    def state_changed(self) -> None:
        """There is a newer STATE, or the server begins to drain."""
        self._next_change.set()
        self._next_change = asyncio.Event()

    def end(self) -> None:
        """End the streams of those who watch."""
        self._has_ended = True
        self.state_changed()

    async def Check(self, request: HealthCheckRequest, context: ServicerContext) -> HealthCheckResponse:
        """The status of one service."""
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service has that name")
        return HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: HealthCheckRequest, context: ServicerContext) -> None:
        """The status now, and each time that it is another."""
        if self._num_watchers >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_WATCHERS} may watch at once")
        self._num_watchers += 1
        try:
            await self._tell(request.service, context)
        finally:
            self._num_watchers -= 1

    async def _tell(self, service: str, context: ServicerContext) -> None:
        last = None
        while not self._has_ended:
            next_change, status = self._next_change, self._status(service)
            if status != last:
                await context.write(HealthCheckResponse(status=status))
                last = status
            await next_change.wait()

    def _status(self, service: str) -> int:
        if service not in SERVICES:
            return int(HealthCheckResponse.SERVICE_UNKNOWN)
        is_ready = bool(self._state.newest.get("ready")) and not self._state.draining
        outputs, models = SERVICES[service], self._state.models.models if self._state.models else []
        is_serving = is_ready and (outputs is None or any(model.outputs & outputs for model in models))
        return int(HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING)


class Reflection(ReflectionServicer):
    """Describes every service of this port, by which tools such as grpcurl learn the methods and messages."""

    def __init__(self, keys: Keys, streams: OpenRequests) -> None:
        services = [service.full_name for file in _FILES for service in file.services_by_name.values()]
        super().__init__([*services, reflection.SERVICE_NAME])
        self._keys = keys
        self._streams = streams

    async def ServerReflectionInfo(
        self, requests: AsyncIterable[ServerReflectionRequest], context: ServicerContext
    ) -> AsyncIterator[ServerReflectionResponse]:
        """Answers as the library does."""
        with OpenRequest(self._streams) as opened:
            try:
                opened.let_in(self._keys.check("POST", _REFLECTION_PATH, headers_of(context)))
                async for answer in super().ServerReflectionInfo(_reflected_in_time(requests), context):
                    yield answer
            except (Unauthorized, Overloaded, BodyTooSlow) as error:
                await context.abort(*refusal(error, ""))


async def _reflected_in_time(
    requests: AsyncIterable[ServerReflectionRequest],
) -> AsyncIterator[ServerReflectionRequest]:
    """Raises BodyTooSlow."""
    coming = aiter(requests)
    while True:
        try:
            async with asyncio.timeout(_REFLECTION_SECONDS):
                request = await anext(coming, None)
        except TimeoutError:
            raise BodyTooSlow(f"no message came for {_REFLECTION_SECONDS:g} seconds") from None
        if request is None:
            return
        yield request


def server_credentials(certfile: str, keyfile: str | None, *, copies: Sequence[int] = ()) -> grpc.ServerCredentials:
    """The certificate of the HTTP port's files, read again when they change.

    `copies`, as server.http.tls has them, are shown until the files can be used. Raises SettingsError.
    """
    watched = WatchedFiles({path: version_of(path) for path in (certfile, keyfile) if path is not None})

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        """Called by each handshake, in a thread of the library; None keeps the certificate before."""
        if not watched.have_changed():
            return None
        try:
            return _read_certificate(certfile, keyfile)
        except SettingsError as error:
            logger.error("gRPC: %s; the certificate that was read before stays", error)
            return None

    first = first_of(_read_certificate, (certfile, keyfile), copies, of="gRPC: ")
    return grpc.dynamic_ssl_server_credentials(first, renewed)


def _read_certificate(certfile: str, keyfile: str | None) -> grpc.ServerCertificateConfiguration:
    """Raises SettingsError for files that can't be used, which the library would only notice in a handshake."""
    load(certfile, keyfile)
    chain, *key = contents(certfile, keyfile)
    return grpc.ssl_server_certificate_configuration([(key[0] if key else chain, chain)])


def make_part(start: FeatureStart, shared: Shared) -> GrpcServer:
    """The gRPC server as the feature's part in a frontend. Raises StartError."""
    assert start.port is not None
    common, limits, certificate = shared.start, shared.start.limits, None
    if common.http.ssl_certfile is not None:
        try:
            certificate = server_credentials(
                common.http.ssl_certfile, common.http.ssl_keyfile, copies=common.access.ssl_copies
            )
        except SettingsError as error:  # the supervisor has read it; so it has changed since
            raise StartError(str(error)) from None
    return GrpcServer(
        start.port,
        shared,
        payload_limit=limits.payload_limit,
        max_concurrent_requests=limits.max_concurrent_requests,
        max_connections=common.max_connections,
        credentials=certificate,
    )
