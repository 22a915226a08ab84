"""grpc.health.v1: SERVING where a request sent now would be computed. Open to everybody, as health over HTTP is."""

import asyncio

import grpc
from grpc.aio import ServicerContext
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthServicer

from engine.types import OutputKind
from server.requests.models import ServerState

MAX_WATCHERS = 64  # of a frontend: they need no key, and each takes an RPC of those that may be open
_ROWS = OutputKind.POOLED | OutputKind.TOKENS | OutputKind.SPARSE | OutputKind.MULTI_VECTOR
# Of which rows a model must give some for a service to be of use; None = of none. "" is the whole server.
SERVICES: dict[str, OutputKind | None] = {
    "": None,
    "tei.v1.Info": None,
    "tei.v1.Tokenize": None,
    "tei.v1.Embed": _ROWS,
    "tei.v1.Predict": OutputKind.LOGITS,
    "tei.v1.Rerank": OutputKind.LOGITS | OutputKind.POOLED | OutputKind.MULTI_VECTOR,
}


class Health(HealthServicer):
    """Says what the supervisor's newest STATE says; watchers are told of each change."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._next_change = asyncio.Event()
        self._has_ended = False
        self._num_watchers = 0

    def state_changed(self) -> None:
        """There is a newer STATE, or the server begins to drain."""
        self._next_change.set()
        self._next_change = asyncio.Event()

    def end(self) -> None:
        """Nobody can watch any longer."""
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
        is_serving = is_ready and self._is_of_use(SERVICES[service])
        return int(HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING)

    def _is_of_use(self, outputs: OutputKind | None) -> bool:
        models = self._state.models.models if self._state.models else []
        return outputs is None or any(model.outputs & outputs for model in models)
