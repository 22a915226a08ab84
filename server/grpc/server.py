"""The gRPC server of one frontend. All frontends listen on the same port, and the kernel shares out the connections."""

import grpc
from grpc.aio import Server
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from server.dialects.tei_grpc.method import Method
from server.dialects.tei_grpc.table import METHODS
from server.grpc.calls import Calls
from server.grpc.health import Health
from server.grpc.info import info_method
from server.grpc.reflection import Reflection
from server.http.auth import Keys
from server.requests.models import ServerState

_IDENTITY_ALONE = 1  # of the library's compressions: a compressed message could expand past every limit
_IDLE_MS = 300_000  # after which a connection without RPCs is closed; clients connect again by themselves
_PING_MS = 60_000  # after which a silent client is asked whether it is still there, and
_PONG_MS = 20_000  # how long it has to answer


class GrpcServer:
    """Must be made inside the event loop. Call start, then stop, each once."""

    def __init__(
        self,
        address: str,
        calls: Calls,
        *,
        state: ServerState,
        keys: Keys,
        max_message_bytes: int,
        max_rpcs: int,
        max_connections: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """`address` is host:port of a port that other processes of this user may listen on too. `max_rpcs` of
        a connection and `max_connections` are open at once; `calls` bounds those of each key. Without credentials
        there is no TLS."""
        self._address = address
        self._credentials = credentials
        self._calls = calls
        self._health = Health(state)
        self._server: Server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),  # the requests are limited, and so what they give
                ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
                ("grpc.max_allowed_incoming_connections", max_connections),
                ("grpc.max_concurrent_streams", max_rpcs),  # of a connection; a client's further RPCs wait there
                ("grpc.http2.bdp_probe", 0),  # or up to 16 MiB of each stream would come before anybody reads them
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.keepalive_time_ms", _PING_MS),
                ("grpc.keepalive_timeout_ms", _PONG_MS),
            ),
        )
        add_HealthServicer_to_server(self._health, self._server)
        add_ServerReflectionServicer_to_server(Reflection(keys, calls.streams), self._server)
        self._server.add_generic_rpc_handlers(_handlers(calls, [*METHODS, info_method(state)]))

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
        by_service.setdefault(f"tei.v1.{method.service}", {})[method.name] = handler
    return [grpc.method_handlers_generic_handler(service, found) for service, found in by_service.items()]
