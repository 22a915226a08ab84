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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from server.features.ray.child import Child

_Message = Mapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
# Of one connection alone.
_NOT_FORWARDED = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"expect", b"upgrade", b"te"})
_OF_BODIES = frozenset({b"content-length", b"transfer-encoding"})  # a request with a body has one of them
_OF_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # which it would add
TOKENS = "queued_tokens"
_GAUGE = b"embedline_queue_tokens{"
_BACKLOG = 4096
_END_SECONDS = 10.0  # that a server takes to end, beside its open requests


class Forward:
    """An ASGI application that sends each request to a replica's Unix socket and gives back what the server answers.

    For the few requests that come through Serve's own proxy, which holds them while there is no replica.
    """

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        """One request, or Serve's words at start and end. Raises aiohttp's errors where the server ends meanwhile."""
        if scope["type"] == "lifespan":
            while (kind := (await receive())["type"]) != "lifespan.shutdown":
                await send({"type": f"{kind}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        import aiohttp
        import yarl

        has_body = any(name.lower() in _OF_BODIES for name, _ in scope["headers"])
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in _kept(scope["headers"])]
        connector = aiohttp.UnixConnector(self._socket)
        async with aiohttp.ClientSession(
            connector=connector, auto_decompress=False, skip_auto_headers=_OF_AIOHTTP, timeout=aiohttp.ClientTimeout()
        ) as session:
            asked = session.request(
                scope["method"],
                yarl.URL(f"http://localhost{target.decode('ascii')}", encoded=True),  # as it came
                headers=headers,
                data=_body(receive) if has_body else None,
                allow_redirects=False,
            )
            async with asked as answer:
                kept = [(name.lower(), value) for name, value in _kept(answer.raw_headers)]
                await send({"type": "http.response.start", "status": answer.status, "headers": kept})
                async for piece in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})


def _kept(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in _NOT_FORWARDED]


async def _body(receive: _Receive) -> AsyncIterator[bytes]:
    """Raises ConnectionError once the client is gone."""
    while (message := await receive())["type"] == "http.request":
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return
    raise ConnectionError("the client is gone")


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
