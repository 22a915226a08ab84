"""One replica of Ray Serve: a server on the replica's port, and what Serve is told of it.

In Serve, a replica behind HAProxy answers HTTP itself, on a port that the controller gives it. Here a whole server
accepts on that port in place of Serve's uvicorn: a request goes from HAProxy to it, and no Python of Ray's is between.
For that one function of Serve is replaced, so the version of Ray is held. This module goes to Ray's processes by value,
so it imports nothing of ours but what goes with it.
"""

import asyncio
import math
import os
import socket
from collections.abc import Sequence
from typing import Any

from server.ray.child import Child
from server.ray.forward import Forward

TOKENS = "queued_tokens"
_GAUGE = b"embedline_queue_tokens{"
_BACKLOG = 4096
_END_SECONDS = 10.0  # that a server takes to end, beside its open requests


class Replica:
    """Made and used by Ray Serve, under the names that it knows."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: str, arguments: Sequence[str], start_seconds: float, shutdown_seconds: float
    ) -> None:
        """Raises RuntimeError where Serve's Python proxy is in front."""
        from ray.serve._private import replica

        if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
            raise RuntimeError(
                "this cluster's Serve was started without HAProxy: end it (serve shutdown), and try again"
            )
        self._start_seconds = start_seconds
        self._end_seconds = shutdown_seconds + _END_SECONDS
        self._child = Child(config, arguments)
        replica.start_asgi_http_server = self._listen  # what Serve calls next

    async def _listen(self, app: object, options: Any, **_: object) -> tuple[asyncio.Task[None], "_Listening"]:
        """In place of Serve's own, which raises RuntimeError of an OSError where the port is taken."""
        listener = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((options.host, options.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise RuntimeError(f"port {options.port} is taken") from error
        await self._child.start(listener, self._start_seconds)
        listening = _Listening()
        return asyncio.create_task(self._until_exit(listening)), listening

    async def _until_exit(self, listening: "_Listening") -> None:
        await listening.ended.wait()
        await asyncio.to_thread(self._child.stop, self._end_seconds)

    def __serve_build_asgi_app__(self) -> Forward:
        return Forward(self._child.socket)

    async def check_health(self) -> None:
        """Serve replaces a replica that raises three times in a row."""
        if not await self._child.is_ready():
            raise RuntimeError("the server is not ready")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tokens that wait or are computed, of all models and classes."""
        lines = (await self._child.get("/metrics")).splitlines()
        return {TOKENS: sum(float(line.rpartition(b" ")[2]) for line in lines if line.startswith(_GAUGE))}

    async def __del__(self) -> None:
        await asyncio.to_thread(self._child.stop, self._end_seconds)


class _Listening:
    """Stands for uvicorn's server. Serve sets `should_exit` once the proxies know that the replica ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    @property
    def should_exit(self) -> bool:
        return self.ended.is_set()

    @should_exit.setter
    def should_exit(self, _: bool) -> None:
        self.ended.set()


class QueuedTokens:
    """The autoscaling policy: as many replicas as keep to `target_tokens` each."""

    def __init__(self, target_tokens: int) -> None:
        self._target = target_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """How many replicas there should be; Serve applies the delays and bounds."""
        series = (context.raw_metrics or {}).get(TOKENS, {})
        newest = [points[-1].value for points in series.values() if points]
        if not newest:
            return context.target_num_replicas, {}
        least = 1 if context.total_num_requests > 0 else 0  # those that wait for a first replica have no tokens yet
        return max(least, math.ceil(sum(newest) / self._target)), {}
